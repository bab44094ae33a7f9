#include "estimate/step_shape.h"

#include <algorithm>
#include <map>

#include "base/gradient_ring.h"

namespace tessera::estimate {
namespace {

/// What a unit's parameters come to.
struct Sums {
  std::int64_t numel = 0, trainable = 0;  // that tokens pass through
  std::int64_t reduced = 0, gathered_trainable = 0, gathered_frozen = 0, gathered_packed = 0;

  void add(const SizedParameter& p, bool seen) {
    if (seen) numel += p.numel;
    if (seen && p.trainable) trainable += p.numel;
    if (p.trainable) {
      reduced += p.numel;
      gathered_trainable += p.numel;
    } else if (!p.stored_as_computed) {
      (p.packed_bytes > 0 ? gathered_packed : gathered_frozen) += p.packed_bytes > 0 ? p.packed_bytes : p.numel;
    }
  }
  std::vector<std::int64_t> segments(std::int64_t item) const {
    std::vector<std::int64_t> out;
    for (const auto bytes : {item * gathered_trainable, item * gathered_frozen, gathered_packed})
      if (bytes > 0) out.push_back(bytes);
    return out;
  }
};

Work forward_of(double tokens, double numel, double scores, double kept) {
  return {2 * tokens * numel + scores, 2 * kept};
}

/// Gradients of inputs, of weights that train, and attention's, which makes its scores again: five products for two.
Work backward_of(double tokens, const Sums& sums, double scores, double bytes) {
  return {2 * tokens * static_cast<double>(sums.numel + sums.trainable) + 2.5 * scores, 2 * bytes};
}

}  // namespace

double step_flops(const StepShape& shape) {
  double flops = shape.root.forward.flops + shape.root.backward.flops;
  for (std::size_t i = 0; i < shape.blocks.size(); ++i)
    flops += (shape.recomputes(i) ? 2 : 1) * shape.blocks[i].forward.flops + shape.blocks[i].backward.flops;
  return flops;
}

StepShape step_shape(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  StepShape out;
  const auto activations = activation_shape(tensors), encoder = encoder_shape(tensors);
  out.compute_bytes = request.mixed_precision == "no" ? 4 : 2;
  out.tokens = request.batch.tokens();
  out.checkpointing = request.batch.checkpointing;
  std::map<std::string, std::size_t> index;
  std::vector<Sums> sums;
  Sums root;
  const auto experts = tensors.empty() ? 0 : tensors.front().experts_per_token;
  const std::int64_t head = activations.classes * activations.hidden;
  bool head_trains = false;
  for (const auto& p : parameters_of(request, tensors)) {
    if (p.trainable) {
      out.trainable += p.numel;
      out.state_bytes += p.state_bytes < 0 ? 8 * p.numel : p.state_bytes;
    }
    const auto unit = unit_of(p.name);
    if (!unit.empty()) {
      const auto [at, is_new] = index.emplace(unit, sums.size());
      if (is_new) {
        sums.emplace_back();
        out.blocks.push_back({.name = unit});
      }
      sums[at->second].add(p, sees_tokens(p.name, experts));
      continue;
    }
    head_trains = head_trains || (p.trainable && p.numel == head);
    if (p.trainable && p.numel >= kAloneNumel) {
      (is_head(p.name) ? out.root.heads : out.root.tables).push_back(p.numel);
      out.root.gathered.push_back(out.compute_bytes * p.numel);
    } else {
      root.add(p, false);
    }
  }
  const auto tokens = static_cast<double>(out.tokens), item = static_cast<double>(out.compute_bytes);
  for (std::size_t i = 0; i < out.blocks.size(); ++i) {
    auto& block = out.blocks[i];
    const bool in_encoder = encoder.blocks > 0 && block.name.starts_with("encoder.");
    const auto& stack = in_encoder ? encoder : activations;
    const auto batch = in_encoder ? request.batch.of_encoder() : request.batch;
    const auto given = static_cast<double>(batch.tokens()),
               of_stack = std::max<double>(1, static_cast<double>(stack.blocks));
    const double scores = 2 * given * static_cast<double>(batch.length * stack.attended) / of_stack;
    const double kept = given * item * static_cast<double>(stack.kept) / of_stack;
    const double working = given * item * static_cast<double>(stack.working);
    block.forward = forward_of(given, static_cast<double>(sums[i].numel), scores, kept);
    block.backward = backward_of(given, sums[i], scores, kept + working);
    block.gathered = sums[i].segments(out.compute_bytes);
    block.reduced = sums[i].reduced;
  }
  root.numel = head;
  root.trainable = head_trains ? head : 0;
  out.root.forward = forward_of(tokens, static_cast<double>(head), 0, 0);
  out.root.backward = backward_of(tokens, root, 0, 0);
  for (const auto bytes : root.segments(out.compute_bytes)) out.root.gathered.push_back(bytes);
  out.root.reduced = root.reduced;
  return out;
}

}  // namespace tessera::estimate
