#pragma once
// What a model's folder becomes in a GGUF file: keys and tensors as the community's converter (convert_hf_to_gguf.py)
// writes them.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "families/families.h"
#include "io/gguf_writer.h"
#include "models/gguf_layout.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {

enum class GgufForm { kF32, kF16, kQ8_0, kQ4KM };

/// A tensor of the file, and where its values come from.
struct ExportedTensor {
  io::GgufTensorPlan plan;
  std::vector<std::string> sources;  // one, or one for each expert; none: `values`
  GgufArrangement arrangement = GgufArrangement::kPlain;
  GgufHeads heads = {};
  std::vector<float> values = {};
  double scale = 1;            // of the values that are read
  std::int64_t first_row = 0;  // of its source; those before it are left out
};

struct GgufExport {
  std::string architecture;
  std::string note;           // a line about what readers of the file do otherwise; empty: nothing
  io::GgufMetadata metadata;  // the architecture's keys
  std::vector<ExportedTensor> tensors;
};

/// What is common to the families that are written.
struct GgufSubject {
  std::string family;      // as gguf_family() says
  std::string model_type;  // for messages
  std::string head;        // "lm_head"
  bool tied = false;
  bool copies_head = false;         // where tied, the file has it beside the table all the same
  double head_scale = 1;            // of a head of its own
  std::int64_t first_position = 0;  // rows of learned positions before it are left out
  GgufHeads heads = {};
  std::int64_t layers = 0, experts = 0, vocab_size = 0;
};

/// ConfigError names a family that is not written; gguf_model_types() are.
GgufSubject gguf_subject(const families::FamilyConfig& config);

/// Of a matrix with rows of this length, in the forms that give all matrices one type: kQ8_0 is float16 where its
/// blocks do not divide the rows.
std::uint32_t gguf_matrix_type(GgufForm form, std::int64_t columns);

/// ConfigError for families that are not written, and for what the format cannot say of these. DataError for a
/// tensor that the architecture does not have. json: config.json.
GgufExport plan_gguf(const families::FamilyConfig& config, const nlohmann::json& json, const io::TensorSource& weights,
                     GgufForm form);

/// All values of a planned tensor, row-major, as the file has them: float32, contiguous.
at::Tensor values_for_gguf(const ExportedTensor& tensor, const io::TensorSource& weights);

}  // namespace tessera::models
