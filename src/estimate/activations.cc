#include "estimate/activations.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/dotted_name.h"
#include "base/gemm_tiles.h"
#include "base/head_rows.h"
#include "estimate/rank_memory.h"

namespace tessera::estimate {

bool closes_branch(const std::string& path) {
  static const std::set<std::string> kClosing = {
      "o_proj", "o",  "out_proj", "dense",         "attn_output", "c_proj",  "down_proj", "wo",
      "fc2",    "w2", "ffn_down", "dense_4h_to_h", "ffn_output",  "out_lin", "lin2"};
  const auto name = last_part(path);
  return kClosing.contains(name) && !path.ends_with("intermediate.dense");
}

bool is_in_attention(const std::string& path) {
  for (const char* word : {"attn", "attention", "Attention"})
    if (path.find(word) != std::string::npos) return true;
  return false;
}

namespace {

constexpr std::int64_t kWorkingHidden = 8, kWorkingInner = 3;  // as runs of decoders measured it

struct BlockShape {
  std::int64_t kept = 0, widest = 0, inner = 0, widest_side = 0, hidden = 0, attended = 0, heads = 0, device_heads = 0;
  std::int64_t of_encoder = 0;
  /// Of the feed-forward layer: gate and up may be one matrix.
  std::int64_t inner_size() const { return inner > 0 ? std::min(inner, widest) : widest; }
  void add(const ModelTensor& t) {
    device_heads += t.kept_heads;
    if (t.kept_on_cpu) heads += t.kept_heads;
    const auto path = module_of(t.name);
    const auto [inputs, outputs] = sides_of(t);
    widest_side = std::max({widest_side, inputs, outputs});
    if (closes_branch(path)) {
      hidden = outputs;
      kept += t.kept_outputs.value_or(outputs);  // the residual stream after the branch before
      is_in_attention(path) ? attended += inputs : inner = std::max(inner, inputs);
    } else if (t.reads_encoder) {
      of_encoder += outputs;
    } else {
      kept += t.kept_outputs.value_or(outputs);
      if (!is_in_attention(path)) widest = std::max(widest, outputs);
    }
  }
};

const std::string kExperts = "experts.";

bool is_of_expert(const std::string& path) {
  return path.find(kExperts) != std::string::npos;
}

/// A table of positions, which is no output head however many rows it has.
bool is_of_positions(const ModelTensor& t) {
  return t.name.find("wpe") != std::string::npos || t.name.find("position") != std::string::npos;
}

}  // namespace

std::string of_any_expert(const std::string& parameter) {
  const auto at = parameter.find(kExperts);
  if (at == std::string::npos) return {};
  const auto number = at + kExperts.size();
  return parameter.substr(0, number) + parameter.substr(std::min(parameter.size(), parameter.find('.', number)));
}

bool sees_tokens(const std::string& parameter, std::int64_t experts_per_token) {
  const auto at = parameter.find(kExperts);
  return at == std::string::npos || std::atoll(parameter.c_str() + at + kExperts.size()) < experts_per_token;
}

void BatchShape::put_in_front(std::int64_t tokens) {
  if (length > 0) (encoder_length > 0 ? encoder_length : length) += tokens;
}

BatchShape BatchShape::of_encoder() const {
  BatchShape out = *this;
  if (encoder_length > 0) out.length = encoder_length;
  out.encoder_length = 0;
  return out;
}

std::int64_t BatchShape::tokens_of(const ModelTensor& tensor) const {
  return tensor.in_encoder || tensor.reads_encoder ? of_encoder().tokens() : tokens();
}

namespace {

ActivationShape shape_of(const std::vector<ModelTensor>& tensors, bool of_encoder) {
  std::map<std::string, BlockShape> blocks;
  ActivationShape out;
  std::int64_t table = 0, head = 0;
  for (const auto& t : tensors) {
    if (t.in_encoder != of_encoder) continue;
    const auto unit = unit_of(t.name);
    if (t.packed_bytes > 0 && unit.empty() && is_head(t.name)) out.packed_head = true;
    if (t.shape.size() != 2) continue;
    if (unit.empty()) {
      if (is_of_positions(t)) continue;
      auto& rows = is_head(t.name) ? head : table;
      rows = std::max(rows, t.shape[0]);
    } else if (is_linear(t) && sees_tokens(t.name, t.experts_per_token)) {
      blocks[unit].add(t);
      out.heads_working = std::max(out.heads_working, t.kept_heads);
      out.positions = std::max(out.positions, t.positions);
      out.position_tables = std::max(out.position_tables, t.position_tables);
    }
  }
  out.classes = head > 0 ? head : table;
  for (const auto& [name, block] : blocks) {
    out.hidden = std::max(out.hidden, block.hidden);
    const auto kept = block.kept + block.attended;  // what a gate or an activation made is remade
    out.kept += kept;
    out.attended += block.attended;
    out.of_encoder += block.of_encoder;
    out.of_encoder_largest = std::max(out.of_encoder_largest, block.of_encoder);
    out.heads += block.heads;
    out.heads_largest = std::max(out.heads_largest, block.heads);
    out.device_heads += block.device_heads;
    out.device_heads_largest = std::max(out.device_heads_largest, block.device_heads);
    out.largest = std::max(out.largest, kept);
    out.widest = std::max(out.widest, block.widest_side);
    out.working = std::max(out.working, kWorkingInner * block.inner_size() + kWorkingHidden * block.hidden);
  }
  out.blocks = static_cast<std::int64_t>(blocks.size());
  return out;
}

/// Layers of a block with the same name of their input get the same: q, k and v, or gate and up.
std::string input_of(const std::string& module) {
  const bool of_encoder = module.find("EncDecAttention") != std::string::npos && !module.ends_with(".q");
  if (closes_branch(module)) return module;
  return module.substr(0, module.rfind('.')) + (of_encoder ? " of the encoder" : "");
}

AdapterActivations activations_of(const std::vector<ModelTensor>& tensors, const OfAdapter& of_adapter,
                                  bool of_encoder) {
  struct Input {
    std::string unit;
    std::int64_t size = 0;
    bool is_read = false;
  };
  std::map<std::string, std::int64_t> kept, unread;  // by block
  std::map<std::string, bool> positions_read;
  std::map<std::string, Input> inputs;
  AdapterActivations out;
  for (const auto& t : tensors) {
    if (t.in_encoder != of_encoder || !is_linear(t) || !sees_tokens(t.name, t.experts_per_token)) continue;
    const auto module = module_of(t.name);
    const auto bytes = of_adapter(t);
    const auto [input, is_new] = inputs.try_emplace(input_of(module));
    kept[unit_of(t.name)] += bytes.kept + (is_new ? bytes.kept_by_input : 0);
    out.working = std::max(out.working, bytes.working);
    if (t.reads_positions) positions_read[unit_of(t.name)] |= bytes.reads_input;
    const bool is_copied =
        closes_branch(module) ? is_in_attention(module) : t.experts_per_token > 0 && is_of_expert(module);
    if (is_copied || t.reads_stream) input->second.unit = unit_of(t.name), input->second.size = sides_of(t).in;
    input->second.is_read = input->second.is_read || bytes.reads_input;
  }
  for (const auto& [name, input] : inputs)
    if (!input.is_read) unread[input.unit] += input.size;
  for (const auto& [unit, read] : positions_read) out.unread_positions += !read;
  for (const auto& [unit, of_block] : kept) {
    out.kept += of_block;
    out.largest = std::max(out.largest, of_block);
  }
  for (const auto& [unit, of_block] : unread) {
    out.unread += of_block;
    out.largest_unread = std::max(out.largest_unread, of_block);
  }
  return out;
}

}  // namespace

ActivationShape activation_shape(const std::vector<ModelTensor>& tensors) {
  auto out = shape_of(tensors, /*of_encoder=*/false);
  out.blocks_before = encoder_shape(tensors).blocks;
  return out;
}
ActivationShape encoder_shape(const std::vector<ModelTensor>& tensors) {
  return shape_of(tensors, /*of_encoder=*/true);
}

AdapterActivations adapter_activations(const std::vector<ModelTensor>& tensors, const OfAdapter& of_adapter) {
  return activations_of(tensors, of_adapter, /*of_encoder=*/false);
}
AdapterActivations encoder_adapter_activations(const std::vector<ModelTensor>& tensors, const OfAdapter& of_adapter) {
  return activations_of(tensors, of_adapter, /*of_encoder=*/true);
}

std::int64_t whole_logits_bytes(const ActivationShape& shape, std::int64_t tokens) {
  return 3 * 4 * tokens * shape.classes;
}

namespace {

/// While a plain head's loss and gradients are made, beside the hidden states' (nn/ops/label_scores.cc).
std::int64_t loss_bytes(const ActivationShape& shape, std::int64_t tokens, std::int64_t compute_bytes,
                        Products products) {
  if (shape.classes == 0) return 0;
  const std::int64_t dim = shape.hidden, chunk = std::min(kClassesAtOnce, shape.classes);
  // A row's sums in float32, in 16 bits the product that is added to them, and a chunk of logits.
  const std::int64_t of_row = 4 * dim + (compute_bytes == 4 ? 0 : compute_bytes * dim) + compute_bytes * chunk;
  const std::int64_t most = shape.head_trains ? dim : rows_in_one_pass(dim), rows = std::min(tokens, most);
  std::int64_t out = rows * of_row;
  if (!shape.head_trains) out += compute_bytes * dim * rows;  // the labels' weights
  if (shape.packed_head) out += compute_bytes * chunk * dim;
  if (shape.head_trains) {
    const std::int64_t piece = std::min(tokens - rows, rows_of_a_piece(dim, shape.classes, compute_bytes));
    out = std::max(out, piece * (of_row + compute_bytes * shape.classes));
    if (compute_bytes < 4) out += compute_bytes * chunk * dim;  // a part of the weight's gradient, before it is widened
  }
  if (products != Products::kWidened && products != Products::kTiles) return out;
  const bool in_float32 = compute_bytes == 4;
  const std::int64_t of_weight = shape.head_trains ? tiles_bytes(chunk, rows, dim, in_float32) : 0;
  return out +
         std::max({tiles_bytes(rows, dim, chunk, in_float32), tiles_bytes(rows, chunk, dim, in_float32), of_weight});
}

}  // namespace

std::int64_t recomputed_blocks(const ActivationShape& shape, const BatchShape& batch) {
  const auto n = batch.checkpointing;
  const auto up_to = [&](std::int64_t block) { return (block + n - 1) / n; };
  return n > 0 ? up_to(shape.blocks_before + shape.blocks) - up_to(shape.blocks_before) : 0;
}

bool recomputes_last(const ActivationShape& shape, const BatchShape& batch) {
  const auto last = shape.blocks_before + shape.blocks - 1;
  return recomputed_blocks(shape, batch) > 0 && last % batch.checkpointing == 0;
}

Accumulation accumulation_of(std::int64_t batches_of_a_step, bool sync_each_batch, std::int64_t ranks) {
  if (batches_of_a_step == 1) return Accumulation::kNone;
  return sync_each_batch || ranks == 1 ? Accumulation::kSharded : Accumulation::kUnsharded;
}

ActivationBytes activation_bytes(const ActivationShape& shape, const AdapterActivations& adapters,
                                 const BatchShape& batch, std::int64_t compute_bytes, Products products) {
  constexpr std::int64_t kAttentionHidden = 4;
  constexpr std::int64_t kQueriesOfBlock = 128, kScoresOfBlock = 1 << 20;  // nn/ops/attention.cc
  const std::int64_t tokens = batch.tokens(), one = tokens * compute_bytes;
  if (tokens == 0) return {};
  // Attention goes by blocks of queries (nn/ops/attention.cc), with a block's probabilities and their gradient. In
  // backward the feed-forward layer's memory is free again.
  const std::int64_t encoded = shape.of_encoder > 0 ? batch.of_encoder().tokens() * compute_bytes : 0;
  const std::int64_t keys = encoded > 0 ? std::max(batch.length, batch.of_encoder().length) : batch.length;
  const std::int64_t scores =
      std::min(kScoresOfBlock, shape.heads_working * std::min(batch.length, kQueriesOfBlock) * keys);
  const bool widens = products == Products::kWidened;
  // Each table and the positions that it is made of are kept; its products with a row's tokens, and in backward their
  // gradients, are there in float32 for a while.
  const std::int64_t positions = std::min(std::max<std::int64_t>(2 * batch.length - 1, 0), shape.positions);
  // Where a library multiplies, the scores of distances are those of all heads.
  const std::int64_t heads_at_once = compute_bytes == 4 || widens ? shape.heads_working : 1;
  const std::int64_t in_attention = one * kAttentionHidden * shape.hidden + 2 * compute_bytes * scores +
                                    positions * batch.length * 8 * heads_at_once * shape.position_tables;
  const std::int64_t table = positions * compute_bytes * shape.hidden;
  const std::int64_t tables = shape.position_tables > 0 ? table * (1 + shape.position_tables) : 0;
  // Of keys and values that the encoder's tokens gave, and of those tokens: gradients, which the blocks sum up.
  const std::int64_t of_encoder = encoded * (shape.of_encoder_largest + 2 * shape.hidden);
  const std::int64_t working = std::max(one * shape.working, in_attention + of_encoder);
  constexpr std::int64_t kStatistic = 4;  // a number of each query and head
  ActivationBytes out;
  out.kept = one * (shape.kept - adapters.unread + batch.length * shape.heads) + adapters.kept +
             encoded * (shape.hidden + shape.of_encoder) + shape.blocks * tables - adapters.unread_positions * table +
             kStatistic * tokens * shape.device_heads;
  out.first =
      one * (shape.largest - adapters.largest_unread + batch.length * shape.heads_largest) + adapters.largest + tables;
  out.working = working + adapters.working;
  const std::int64_t again = recomputed_blocks(shape, batch);
  if (again > 0) {
    const std::int64_t inputs = one * again * shape.hidden + encoded * shape.hidden;
    out.kept = inputs + out.kept * (shape.blocks - again) / shape.blocks;
  }
  // Backward begins with the last block. If that one is computed again, its activations come on top of all that is
  // kept. If not, backward has given back whole blocks before it computes one again; of the first block `first` then
  // counts what is made again.
  if (recomputes_last(shape, batch)) {
    if (shape.blocks_before % batch.checkpointing == 0) out.first = one * shape.hidden;
    out.working = working + tables + encoded * shape.of_encoder_largest +
                  one * (shape.largest - adapters.largest_unread - shape.hidden + batch.length * shape.heads_largest) +
                  adapters.working + adapters.largest;
  }
  const bool in_float32 = compute_bytes == 4;
  if (products != Products::kLibrary) out.working += tiles_bytes(tokens, shape.widest, shape.hidden, in_float32);
  out.loss = one * shape.hidden + (shape.whole_logits ? whole_logits_bytes(shape, tokens)
                                                      : loss_bytes(shape, tokens, compute_bytes, products));
  return out;
}

}  // namespace tessera::estimate
