#pragma once
// `tessera merge`: a model and an adapter become one Hugging Face folder, sharded over as many ranks as are launched,
// so that no rank holds the whole model.
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/pretrained.h"
#include "models/model.h"
#include "tasks/pack_flags.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {

/// What `merge` and `export` have in common.
struct WriteModelOptions {
  std::string model_folder;    // config.json, tokenizer files and, unless `source` is set, the weights
  std::string adapter_folder;  // merged in; empty: none
  std::shared_ptr<io::TensorSource> source = nullptr;
  std::string output;
  std::string tokenizer_folder = {};                               // first choice; else the model's
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;  // auto: that which config.json names
  PackFlags packed = {};                                           // linear layers are written packed
  at::Device device = at::kCPU;                                    // merges, unpacks and packs
};
/// Collective. A Hugging Face folder, streamed unit by unit. Returns a line for the terminal.
std::string write_model(const WriteModelOptions& options, const std::shared_ptr<comm::Communicator>& group);

/// Whether the folder is that of a model's body without a head (BertModel, LlamaModel), and the weights lack the head
/// alone. Null: the folder's own, which are opened where its class is that of a body.
bool is_body_alone(const std::string& model_folder, const std::shared_ptr<const models::Model>& model,
                   const std::shared_ptr<const io::TensorSource>& weights);

int merge(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
