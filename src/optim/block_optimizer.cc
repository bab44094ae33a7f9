#include "optim/block_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>

#include "base/offloaded_piece.h"
#include "optim/flat_numbers.h"
#include "quant/block_codes.h"
#include "tensor/mapped_zeros.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kBlocksOfThread = 64;  // at least
constexpr std::int64_t kAlign = 64;           // bytes of a slice's states

using Block = std::array<float, kStateBlock>;

std::int64_t round_up(std::int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

/// Pieces of one tensor, taken one after the other.
class Arena {
 public:
  void expect(std::int64_t numel) { numel_ += round_up(numel); }
  void allocate(const std::shared_ptr<tensor::OffloadStore>& offload, at::ScalarType dtype) {
    if (numel_ == 0)
      whole_ = at::empty({0}, dtype);
    else
      whole_ = offload ? offload->allocate(numel_, dtype) : tensor::mapped_zeros(numel_, dtype);
  }
  at::Tensor take(std::int64_t numel) {
    auto piece = whole_.narrow(0, numel > 0 ? taken_ : 0, numel);
    taken_ += round_up(numel);
    return piece;
  }

 private:
  std::int64_t numel_ = 0, taken_ = 0;
  at::Tensor whole_;
};

at::Tensor map_tensor(bool with_signs) {
  const auto& map = quant::dynamic_map(with_signs);
  auto t = at::empty({static_cast<std::int64_t>(map.size())}, at::kFloat);
  std::copy(map.begin(), map.end(), t.mutable_data_ptr<float>());
  return t;
}

}  // namespace

BlockOptimizer::BlockOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                               const BlockOptions& options, std::vector<BlockState> states,
                               std::shared_ptr<comm::Communicator> group)
    : Optimizer(std::move(parameters), std::move(slices), options.lr),
      options_(options),
      states_(std::move(states)),
      group_(std::move(group)) {
  for (const auto& p : parameters_)
    if (p.scalar_type() == at::kDouble)
      throw ConfigError("optim: the optimizers of bitsandbytes work on float32 and 16-bit parameters, found float64",
                        "optim");
}

BlockOptimizer::~BlockOptimizer() = default;

void BlockOptimizer::keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) {
  TESSERA_CHECK(parts_.empty(), "keep_state_in() comes before the first step");
  offload_ = std::move(offload);
  if (offload_) offload_->accept_halves();
}

// An arena for each flat parameter and dtype, so that few tensors and files hold many small states.
void BlockOptimizer::allocate() {
  if (!parts_.empty() || slices_.empty()) return;
  parts_.resize(slices_.size());
  std::vector<Arena> codes(parameters_.size() + 1), floats(parameters_.size() + 1), statistics(1);
  const auto flat = [&](std::size_t i) {
    return slices_[i].numel > 0 ? static_cast<std::size_t>(slices_[i].parameter) : parameters_.size();
  };
  const auto blocks = [&](std::size_t i) { return end_block(slices_[i]) - first_block(slices_[i]); };
  const auto states = static_cast<std::int64_t>(states_.size());
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const auto& slice = slices_[i];
    auto& packed = parts_[i].packed;
    packed = options_.bits == 8 && !slice.full_state && c10::multiply_integers(slice.shape) >= options_.min_8bit_size;
    for (std::int64_t k = 0; k < states; ++k) {
      (packed ? codes : floats)[flat(i)].expect(slice.numel);
      if (packed) statistics[0].expect(blocks(i));
    }
  }
  for (auto& arena : codes) arena.allocate(offload_, at::kByte);
  for (auto& arena : floats) arena.allocate(offload_, at::kFloat);
  statistics[0].allocate(nullptr, at::kFloat);
  for (std::size_t i = 0; i < slices_.size(); ++i)
    for (std::size_t k = 0; k < states_.size(); ++k) {
      auto& part = parts_[i];
      part.values[k] = (part.packed ? codes : floats)[flat(i)].take(slices_[i].numel);
      if (part.packed) part.absmax[k] = statistics[0].take(blocks(i));
    }
  maps_ = {map_tensor(true), map_tensor(states_.back().with_signs)};
}

void BlockOptimizer::step() {
  at::NoGradGuard no_grad;
  ++steps_;
  allocate();
  check_maps();
  if (!shared_ && options_.bits == 8) {
    std::vector<bool> packed;
    for (const auto& part : parts_) packed.push_back(part.packed);
    shared_.emplace(slices_, packed, group_.get());
  }
  for (std::size_t f = 0; f < parameters_.size(); ++f) {
    const auto& p = parameters_[f];
    const auto grad = p.grad().defined() ? p.grad().contiguous() : at::Tensor();
    if (!grad.defined() || p.numel() == 0) continue;
    const auto* halves = offload_ ? offload_->halves_of(p) : nullptr;
    const FlatNumbers values{halves ? nullptr : p.mutable_data_ptr(), p.scalar_type(), halves};
    const auto narrow = grad.scalar_type() == at::kDouble ? grad.to(at::kFloat) : grad;
    const FlatNumbers gradients{const_cast<void*>(narrow.const_data_ptr()), narrow.scalar_type()};
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (slices_[i].numel == 0 || slices_[i].parameter != static_cast<std::int64_t>(f)) continue;
      offload_ ? update_offloaded(i, values, gradients) : update_slice(i, values, gradients);
    }
    p.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
  }
  encode_shared();
  gradient_factor_ = 1;
}

void BlockOptimizer::update_slice(std::size_t index, const FlatNumbers& p, const FlatNumbers& g) {
  update_range_of(index, p, g, first_block(slices_[index]), end_block(slices_[index]));
}

// Piece by piece, the next one on its way, so that not even a large slice is in memory whole.
void BlockOptimizer::update_offloaded(std::size_t index, const FlatNumbers& p, const FlatNumbers& g) {
  constexpr std::int64_t kPiece = kOffloadedPiece / kStateBlock, kLast = 4096 / kStateBlock;  // pages that pieces share
  const auto first = first_block(slices_[index]), end = end_block(slices_[index]);
  for_offloaded(index, first, first + kPiece, &tensor::OffloadStore::fetch);
  for (auto at = first; at < end; at += kPiece) {
    for_offloaded(index, at + kPiece, at + 2 * kPiece, &tensor::OffloadStore::fetch);
    update_range_of(index, p, g, at, std::min(at + kPiece, end));
    for_offloaded(index, std::max(first, at - kLast), at + kPiece, &tensor::OffloadStore::evict);
  }
}

void BlockOptimizer::for_offloaded(std::size_t index, std::int64_t begin, std::int64_t end,
                                   void (tensor::OffloadStore::*action)(const at::Tensor&) const) const {
  const auto& slice = slices_[index];
  end = std::min(end, end_block(slice));
  if (begin >= end) return;
  const auto from = range_in_block(slice, begin).begin - slice.offset;
  const auto numel = range_in_block(slice, end - 1).end - slice.offset - from;
  const auto& flat = parameters_[static_cast<std::size_t>(slice.parameter)];
  ((*offload_).*action)(flat.detach().view(-1).narrow(0, slice.parameter_offset + from, numel));
  for (std::size_t k = 0; k < states_.size(); ++k)
    ((*offload_).*action)(parts_[index].values[k].narrow(0, from, numel));
}

void BlockOptimizer::update_range_of(std::size_t index, const FlatNumbers& p, const FlatNumbers& g, std::int64_t first,
                                     std::int64_t last) {
  const auto& slice = slices_[index];
  auto scalars = update(lr_ * slice.lr_scale, slice.weight_decay.value_or(options_.weight_decay));
  scalars.gradient_factor = gradient_factor_;
  at::parallel_for(first, last, kBlocksOfThread, [&](std::int64_t begin, std::int64_t end) {
    for (auto block = begin; block < end; ++block) update_block(scalars, index, p, g, range_in_block(slice, block));
  });
}

void BlockOptimizer::update_block(const Update& scalars, std::size_t index, const FlatNumbers& p, const FlatNumbers& g,
                                  const BlockRange& range) {
  const auto& slice = slices_[index];
  auto& part = parts_[index];
  const auto count = range.end - range.begin, in_slice = range.begin - slice.offset;
  const auto block = range.block() - first_block(slice);
  auto* shared = part.packed ? shared_->find(index, range.block()) : nullptr;
  alignas(64) std::array<Block, kMaxStates> decoded;
  States<float> states{};
  for (std::size_t k = 0; k < states_.size(); ++k) {
    if (!part.packed) {
      states[k] = part.values[k].mutable_data_ptr<float>() + in_slice;
      continue;
    }
    states[k] = shared ? shared->values[k].data() : decoded[k].data();
    quant::decode_dynamic_block(states_[k].with_signs, part.values[k].const_data_ptr<std::uint8_t>() + in_slice, count,
                                part.absmax[k].const_data_ptr<float>()[block], states[k]);
  }
  alignas(64) Block p_buffer, g_buffer;
  const auto at = slice.parameter_offset + in_slice;
  auto* values = p.read(at, count, p_buffer.data());
  update_range(scalars, count, values, g.read(at, count, g_buffer.data()), states);
  p.write(at, count, values);
  if (shared) shared->updated = true;
  if (!part.packed || shared) return;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    auto& absmax = part.absmax[k].mutable_data_ptr<float>()[block];
    quant::block_absmax(states[k], count, count, &absmax);
    quant::encode_dynamic_block(states_[k].with_signs, states[k], count, absmax,
                                part.values[k].mutable_data_ptr<std::uint8_t>() + in_slice);
  }
}

void BlockOptimizer::encode_shared() {
  if (!shared_) return;
  shared_->agree(group_.get());
  for (auto& part : shared_->parts()) {
    if (!part.updated) continue;
    part.updated = false;
    const auto& slice = slices_[part.slice];
    for (std::size_t k = 0; k < states_.size(); ++k) {
      const auto absmax = shared_->absmax(part.slot, k);
      auto& kept = parts_[part.slice];
      kept.absmax[k].mutable_data_ptr<float>()[part.range.block() - first_block(slice)] = absmax;
      quant::encode_dynamic_block(states_[k].with_signs, part.values[k].data(), part.range.end - part.range.begin,
                                  absmax,
                                  kept.values[k].mutable_data_ptr<std::uint8_t>() + part.range.begin - slice.offset);
    }
  }
}

/// A checkpoint's codes mean what its maps say; only bitsandbytes' dynamic maps are known here.
void BlockOptimizer::check_maps() {
  if (options_.bits != 8 || !maps_[0].defined()) return;
  const std::array<bool, 2> with_signs = {true, states_.back().with_signs};
  for (std::size_t m = 0; m < 2; ++m)
    if (std::memcmp(maps_[m].const_data_ptr<float>(), quant::dynamic_map(with_signs[m]).data(), 256 * sizeof(float)))
      throw CheckpointError(
          "the optimizer state that was loaded has codes of another map than bitsandbytes' dynamic "
          "one (qmap" +
              std::to_string(m + 1) + "); begin without it",
          "");
}

std::vector<StateSlice> BlockOptimizer::state() {
  allocate();
  std::vector<StateSlice> result;
  for (std::size_t first = 0; first < slices_.size();) {
    auto last = first;  // the slices of one parameter stay together
    while (last < slices_.size() && slices_[last].name == slices_[first].name) ++last;
    const auto numel = c10::multiply_integers(slices_[first].shape);
    const auto blocks = quant::blocks_of(numel, kStateBlock);
    const auto add = [&](std::size_t k, const char* name, std::vector<std::int64_t> shape, std::int64_t size,
                         const auto& describe) {
      if (states_[k].parts > 1) shape.insert(shape.begin(), states_[k].parts);
      for (auto i = first; i < last; ++i) {
        StateSlice part;
        describe(i, part);
        part.parameter = slices_[i].name;
        part.state = name + std::to_string(states_[k].number);
        part.shape = shape;
        part.offset += states_[k].part * size;
        result.push_back(std::move(part));
      }
    };
    for (std::size_t k = 0; k < states_.size(); ++k)
      add(k, "state", slices_[first].shape, numel, [&](std::size_t i, StateSlice& part) {
        part.offset = slices_[i].offset;
        part.local = parts_[i].values[k];
      });
    for (std::size_t k = 0; parts_[first].packed && k < states_.size(); ++k)
      add(k, "absmax", {blocks}, blocks, [&](std::size_t i, StateSlice& part) {
        part.offset = first_block(slices_[i]);
        part.local = parts_[i].absmax[k];
        part.repeated = slices_[i].numel > 0 && slices_[i].offset % kStateBlock != 0 ? 1 : 0;
      });
    for (int m = 1; parts_[first].packed && m <= states_.back().number; ++m)
      result.push_back(
          {slices_[first].name, "qmap" + std::to_string(m), {256}, 0, maps_[static_cast<std::size_t>(m) - 1], true});
    first = last;
  }
  return result;
}

}  // namespace tessera::optim
