#pragma once
// The modules of a model as data: which parts a module has, what they are called, what shape their parameters have. The
// modules are built from it (models), and what a model needs is known by it without building anything (estimate).
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::families {

struct BertConfig;
struct DecoderConfig;
struct T5Config;

struct Blueprint {
  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  std::string name = {};                   // in its parent; may be a path, "model.decoder"
  std::vector<std::int64_t> sizes = {};    // of a layer: what it is made with, see below
  std::vector<Parameter> parameters = {};  // its own
  std::vector<Blueprint> parts = {};       // in the order in which they are registered

  /// The part of this name; null: there is none.
  const Blueprint* find(const std::string& part) const;
  /// The part of this name, which must be there.
  const Blueprint& at(const std::string& part) const;
};

enum class Bias { kNone, kWith };
enum class NormForm { kBare, kWeight, kWeightAndBias };

/// sizes: {inputs, outputs}; the weight is [outputs, inputs].
Blueprint linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, Bias bias);
/// The same with a weight [inputs, outputs] (GPT-2's Conv1D).
Blueprint transposed_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, Bias bias);
/// sizes: {rows, size}.
Blueprint embedding(const std::string& name, std::int64_t rows, std::int64_t size);
/// sizes: {size}.
Blueprint norm(const std::string& name, std::int64_t size, NormForm form);
/// A list of modules "0", "1", ...
Blueprint list(const std::string& name, std::int64_t count, const std::function<Blueprint(std::int64_t)>& part);

inline Bias bias_if(bool wanted) {
  return wanted ? Bias::kWith : Bias::kNone;
}

/// The whole model. The root has no name.
Blueprint blueprint(const T5Config& config);
Blueprint blueprint(const DecoderConfig& config);
Blueprint blueprint(const BertConfig& config);

/// All parameters with their full names, in the order in which torch::nn::Module::named_parameters() has them.
std::vector<Blueprint::Parameter> parameters_of(const Blueprint& root);

}  // namespace tessera::families
