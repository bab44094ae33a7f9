#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/t5_layers.h"

namespace tessera::models {

struct T5BlockCache {
  T5KeyValueCache self, cross;
};

struct T5BlockInput {
  at::Tensor hidden, encoder_hidden, position_bias;  // as in T5AttentionInput
  std::shared_ptr<const T5Layout> layout;
  T5BlockCache* cache = nullptr;
  at::Tensor prefix = {};
};
struct T5BlockOutput {
  at::Tensor hidden, position_bias;  // the bias that later blocks use
};
void collect_tensors(T5BlockInput& in, std::vector<at::Tensor*>& out);
void collect_tensors(T5BlockOutput& o, std::vector<at::Tensor*>& out);

class T5Block : public nn::Block<T5BlockInput, T5BlockOutput> {
 public:
  T5Block(const families::T5Config& config, const families::Blueprint& plan, bool decoder, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  T5BlockOutput forward_impl(T5BlockInput in) override;

 private:
  std::string class_name_;
  bool bias_in_every_layer_;
  std::shared_ptr<T5LayerAttention> self_, cross_;
  std::shared_ptr<T5LayerFF> feed_forward_;
};

struct T5StackInput {
  at::Tensor embedded;        // T D, rows of the token table
  at::Tensor encoder_hidden;  // T D, decoder only
  std::shared_ptr<const T5Layout> layout;
  std::vector<T5BlockCache>* caches = nullptr;  // one for each block, decoder only
  bool want_hidden = false;
  at::Tensor prefix = {};  // ModelInput::prefix, decoder only
};
struct T5StackOutput {
  at::Tensor hidden;               // T D, after the final norm
  std::vector<at::Tensor> states;  // input of each block, then `hidden`; empty unless wanted
};
void collect_tensors(T5StackInput& in, std::vector<at::Tensor*>& out);
void collect_tensors(T5StackOutput& o, std::vector<at::Tensor*>& out);

/// Of ModelInput::prefix the keys and values of a decoder's layer, [2, V, H, K]; undefined stays so.
at::Tensor prefix_of_layer(const at::Tensor& prefix, std::size_t layer);

class T5Stack : public nn::Block<T5StackInput, T5StackOutput> {
 public:
  T5Stack(const families::T5Config& config, const families::Blueprint& plan, bool decoder, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  T5StackOutput forward_impl(T5StackInput in) override;

 private:
  std::string class_name_;
  std::vector<std::shared_ptr<T5Block>> blocks_;
  std::shared_ptr<nn::RmsNorm> final_layer_norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

}  // namespace tessera::models
