// Steps of parameters on another device than the CPU. Whole blocks are updated there. Blocks of which other slices hold
// a part are few (two of a slice at most): they are copied to the CPU, updated by the CPU's code, and copied back.
#include <algorithm>

#include "optim/block_optimizer.h"
#include "optim/device_update.h"
#include "optim/flat_numbers.h"
#include "optim/host_copies.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kPieceOfRun = 1 << 22;  // elements: what is made on the way takes about ten times 16 MiB

bool follows(const at::Tensor& next, const at::Tensor& t) {
  return !t.defined() ||
         (next.storage().is_alias_of(t.storage()) && t.storage_offset() + t.numel() == next.storage_offset());
}

at::Tensor joined(const at::Tensor& t, const at::Tensor& next) {
  return t.defined() ? t.as_strided({t.numel() + next.numel()}, {1}) : t;
}

}  // namespace

BlockOptimizer::Run BlockOptimizer::run_of(std::size_t index, const at::Tensor& gradient) {
  const auto& slice = slices_[index];
  const auto& part = parts_[index];
  auto begin = slice.offset, end = slice.offset + slice.numel;
  const auto first = blocks_.range_in(slice, blocks_.first(slice)),
             last = blocks_.range_in(slice, blocks_.end(slice) - 1);
  if (part.packed && shared_->find(index, first.block)) begin = first.end;
  if (part.packed && shared_->find(index, last.block)) end = std::max(begin, last.begin);
  const auto range = [&](const at::Tensor& flat) {
    return flat.detach().view(-1).narrow(0, slice.parameter_offset + begin - slice.offset, end - begin);
  };
  Run run{.packed = part.packed,
          .update = update_of(slice),
          .parameter = range(parameters_[static_cast<std::size_t>(slice.parameter)]),
          .gradient = range(gradient)};
  if (begin == end) return run;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    const auto from = place_of(index, begin);
    run.values[k] = part.values[k].narrow(0, from, place_of(index, end - 1) + 1 - from);
    if (!part.packed) continue;
    const auto block = begin / blocks_.numel;
    run.scales[k] = part.scales[k].narrow(0, block - blocks_.first(slice), (end - 1) / blocks_.numel + 1 - block);
  }
  return run;
}

bool BlockOptimizer::continues(const Run& next, const Run& run) const {
  bool adjacent = run.packed == next.packed && (!run.packed || run.parameter.numel() % blocks_.numel == 0) &&
                  follows(next.parameter, run.parameter) && follows(next.gradient, run.gradient) &&
                  takes_same_step(next.update, run.update);
  for (std::size_t k = 0; k < states_.size(); ++k)
    adjacent = adjacent && follows(next.values[k], run.values[k]) && follows(next.scales[k], run.scales[k]);
  return adjacent;
}

void BlockOptimizer::update_there(std::size_t flat, const at::Tensor& gradient) {
  Run run;
  const auto finish = [&] {
    if (run.parameter.defined()) update_run(run);
  };
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (slices_[i].numel == 0 || slices_[i].parameter != static_cast<std::int64_t>(flat)) continue;
    auto next = run_of(i, gradient);
    if (next.parameter.numel() == 0) continue;
    if (!run.parameter.defined() || !continues(next, run)) {
      finish();
      run = std::move(next);
      continue;
    }
    run.parameter = joined(run.parameter, next.parameter);
    run.gradient = joined(run.gradient, next.gradient);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      run.values[k] = joined(run.values[k], next.values[k]);
      run.scales[k] = joined(run.scales[k], next.scales[k]);
    }
  }
  finish();
}

void BlockOptimizer::update_run(const Run& run) const {
  if (run.packed && there_->update(run.update, run.parameter, run.gradient, run.values, run.scales)) return;
  const auto together = run.packed ? options_.codec->codes_in_byte() : 1;
  for (std::int64_t begin = 0; begin < run.parameter.numel(); begin += kPieceOfRun) {
    const auto count = std::min(kPieceOfRun, run.parameter.numel() - begin);
    const auto values = [&](std::size_t k) {
      return run.values[k].narrow(0, begin / together, (count + together - 1) / together);
    };
    const auto scales = [&](std::size_t k) {
      return run.scales[k].narrow(0, begin / blocks_.numel, (count + blocks_.numel - 1) / blocks_.numel);
    };
    std::array<at::Tensor, kMaxStates> states;
    for (std::size_t k = 0; k < states_.size(); ++k)
      states[k] = run.packed ? there_->decode(states_[k].with_signs, values(k), scales(k), count) : values(k);
    update_on_device(run.update, run.parameter.narrow(0, begin, count), run.gradient.narrow(0, begin, count), states);
    for (std::size_t k = 0; run.packed && k < states_.size(); ++k)
      there_->encode(states_[k].with_signs, states[k], values(k), scales(k));
  }
}

void BlockOptimizer::update_shared_there(const std::vector<at::Tensor>& gradients) {
  if (!shared_) return;
  HostCopies copies;
  const auto& parts = shared_->parts();
  mirrors_.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [index, range] = std::tie(parts[i].slice, parts[i].range);
    const auto& slice = slices_[index];
    const auto flat = static_cast<std::size_t>(slice.parameter);
    if (!gradients[flat].defined()) continue;
    const auto values = [&](const at::Tensor& t) {
      return t.detach().view(-1).narrow(0, slice.parameter_offset + range.begin - slice.offset, range.numel());
    };
    using enum HostCopies::Use;
    copies.add(values(parameters_[flat]), &mirrors_[i].parameter, kReadAndWrite);
    copies.add(values(gradients[flat]), &mirrors_[i].gradient, kRead);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      const auto from = place_of(index, range.begin), to = place_of(index, range.end - 1) + 1;
      copies.add(parts_[index].values[k].narrow(0, from, to - from), &mirrors_[i].bytes[k], kReadAndWrite);
      copies.add(parts_[index].scales[k].narrow(0, range.block - blocks_.first(slice), 1), &mirrors_[i].scales[k],
                 kReadAndWrite);
    }
  }
  copies.fetch();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [p, g, bytes, scales] = mirrors_[i];
    if (!p.defined()) continue;
    update_block(update_of(slices_[parts[i].slice]), parts[i].slice, {p.mutable_data_ptr(), p.scalar_type()},
                 {g.mutable_data_ptr(), g.scalar_type()}, 0, parts[i].range);
  }
  encode_shared();
  copies.give_back();
  mirrors_.clear();
}

}  // namespace tessera::optim
