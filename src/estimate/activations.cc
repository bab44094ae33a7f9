#include "estimate/activations.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "estimate/rank_memory.h"

namespace tessera::estimate {
namespace {

struct Matrix {
  std::string name;  // "o_proj"
  std::int64_t inputs = 0, outputs = 0;
  bool in_attention = false;
};

std::string module_path(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

/// The projections that end a branch and add to the residual stream.
bool closes_branch(const std::string& path) {
  static const std::set<std::string> kClosing = {"o_proj",    "o",  "out_proj", "dense", "attn_output", "c_proj",
                                                 "down_proj", "wo", "fc2",      "w2",    "ffn_down",    "dense_4h_to_h",
                                                 "ffn_output"};
  const auto name = path.substr(path.rfind('.') + 1);
  return kClosing.contains(name) && !path.ends_with("intermediate.dense");
}

bool is_in_attention(const std::string& path) {
  for (const char* word : {"attn", "attention", "Attention"})
    if (path.find(word) != std::string::npos) return true;
  return false;
}

/// GPT-2's Conv1D stores [in, out].
bool is_transposed(const std::string& path) {
  const auto name = path.substr(path.rfind('.') + 1);
  return name == "c_attn" || name == "c_fc" || name == "c_proj";
}

struct BlockShape {
  std::int64_t kept = 0, widest = 0, hidden = 0, attended = 0;
  void add(const ModelTensor& t) {
    const auto path = module_path(t.name);
    auto inputs = t.shape[1], outputs = t.shape[0];
    if (is_transposed(path)) std::swap(inputs, outputs);
    if (closes_branch(path)) {
      hidden = outputs;
      kept += outputs;  // the residual stream after the branch before
      if (is_in_attention(path)) attended += inputs;
    } else {
      kept += outputs;
      if (!is_in_attention(path)) widest = std::max(widest, outputs);
    }
  }
};

}  // namespace

bool sees_tokens(const std::string& parameter) {
  const auto at = parameter.find("experts.");
  return at == std::string::npos || parameter.compare(at + 8, 2, "0.") == 0 || parameter.compare(at + 8, 2, "1.") == 0;
}

ActivationShape activation_shape(const std::vector<ModelTensor>& tensors) {
  constexpr std::int64_t kWorkingHidden = 8, kWorkingInner = 3;  // as runs of decoders measured it
  std::map<std::string, BlockShape> blocks;
  ActivationShape out;
  std::int64_t table = 0, head = 0;
  for (const auto& t : tensors) {
    if (t.shape.size() != 2) continue;
    const auto unit = unit_of(t.name);
    if (unit.empty()) {
      auto& rows = t.name.find("head") != std::string::npos ? head : table;
      rows = std::max(rows, t.shape[0]);
    } else if (t.name.ends_with(".weight") && t.name.find("relative_attention_bias") == std::string::npos) {
      if (sees_tokens(t.name)) blocks[unit].add(t);
    }
  }
  out.classes = head > 0 ? head : table;
  for (const auto& [name, block] : blocks) {
    out.hidden = std::max(out.hidden, block.hidden);
    const auto kept = block.kept + block.attended;  // what a gate or an activation made is remade
    out.kept += kept;
    out.attended += block.attended;
    out.largest = std::max(out.largest, kept);
    out.working = std::max(out.working, kWorkingInner * block.widest + kWorkingHidden * block.hidden);
  }
  out.blocks = static_cast<std::int64_t>(blocks.size());
  return out;
}

ActivationBytes activation_bytes(const ActivationShape& shape, const BatchShape& batch, std::int64_t compute_bytes) {
  constexpr std::int64_t kLogitsBytes = 16 << 20;  // nn/ops/linear_cross_entropy.cc makes so many at a time
  const std::int64_t tokens = batch.tokens(), one = tokens * compute_bytes;
  if (tokens == 0) return {};
  ActivationBytes out;
  out.kept = one * (batch.checkpointing ? shape.blocks * shape.hidden : shape.kept);
  out.working = one * (shape.working + (batch.checkpointing ? shape.largest - shape.hidden : 0));
  out.loss = one * shape.hidden + std::min(one * shape.classes, std::max(kLogitsBytes, compute_bytes * shape.classes));
  return out;
}

}  // namespace tessera::estimate
