#include "optim/block_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/offloaded_piece.h"
#include "optim/flat_numbers.h"
#include "quant/block_codes.h"
#include "tensor/mapped_zeros.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kBlocksOfThread = 64;  // at least
constexpr std::int64_t kAlign = 64;           // elements: states of a slice

using Block = std::array<float, kLargestStateBlock>;

/// Pieces of one tensor, taken one after the other, each at a multiple of so many elements.
class Arena {
 public:
  explicit Arena(std::int64_t align) : align_(align) {}
  void expect(std::int64_t numel) { numel_ += whole(numel); }
  void allocate(const std::shared_ptr<tensor::OffloadStore>& offload, at::ScalarType dtype, at::Device device) {
    if (numel_ == 0)
      memory_ = at::empty({0}, at::device(device).dtype(dtype));
    else
      memory_ = offload ? offload->allocate(numel_, dtype) : tensor::lasting_zeros(numel_, dtype, device);
  }
  at::Tensor take(std::int64_t numel) {
    auto piece = memory_.narrow(0, numel > 0 ? taken_ : 0, numel);
    taken_ += whole(numel);
    return piece;
  }

 private:
  std::int64_t whole(std::int64_t numel) const { return (numel + align_ - 1) / align_ * align_; }
  std::int64_t align_, numel_ = 0, taken_ = 0;
  at::Tensor memory_;
};

}  // namespace

BlockOptimizer::BlockOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                               const BlockOptions& options, std::vector<BlockState> states,
                               std::shared_ptr<comm::Communicator> group)
    : Optimizer(std::move(parameters), std::move(slices), options.lr),
      options_(options),
      blocks_{options.codec ? options.codec->block() : kLargestStateBlock},
      states_(std::move(states)),
      group_(std::move(group)) {
  for (const auto& p : parameters_)
    if (p.scalar_type() == at::kDouble)
      throw ConfigError(
          "optim: optimizers with states of few bits work on float32 and 16-bit parameters, found float64", "optim");
}

BlockOptimizer::~BlockOptimizer() = default;

void BlockOptimizer::keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) {
  TESSERA_CHECK(parts_.empty(), "keep_state_in() comes before the first step");
  offload_ = std::move(offload);
  if (offload_) offload_->accept_halves();
}

// An arena for each flat parameter and dtype, so that few tensors and files hold many small states. Those of slices
// that lie one behind the other do so, too, state by state: a device updates them together.
void BlockOptimizer::allocate() {
  if (!parts_.empty() || slices_.empty()) return;
  parts_.resize(slices_.size());
  std::vector<Arena> codes(parameters_.size() + 1, Arena(kAlign)), floats(parameters_.size() + 1, Arena(kAlign));
  Arena statistics(1);
  const auto device = parameters_.empty() ? at::Device(at::kCPU) : parameters_[0].device();
  const auto flat = [&](std::size_t i) {
    return slices_[i].numel > 0 ? static_cast<std::size_t>(slices_[i].parameter) : parameters_.size();
  };
  const auto blocks = [&](std::size_t i) { return blocks_.end(slices_[i]) - blocks_.first(slices_[i]); };
  const auto size = [&](std::size_t i) {  // of the values: bytes of codes, or floats
    const auto& slice = slices_[i];
    return slice.numel > 0 ? place_of(i, slice.offset + slice.numel - 1) + 1 : 0;
  };
  const auto states = static_cast<std::int64_t>(states_.size());
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    auto& packed = parts_[i].packed;
    packed = options_.codec && options_.codec->packs(slices_[i]);
    for (std::int64_t k = 0; k < states; ++k) {
      (packed ? codes : floats)[flat(i)].expect(size(i));
      if (packed) statistics.expect(blocks(i));
    }
  }
  for (auto& arena : codes) arena.allocate(offload_, at::kByte, device);
  for (auto& arena : floats) arena.allocate(offload_, at::kFloat, device);
  statistics.allocate(nullptr, at::kFloat, device);
  for (std::size_t k = 0; k < states_.size(); ++k)
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      auto& part = parts_[i];
      part.values[k] = (part.packed ? codes : floats)[flat(i)].take(size(i));
      if (part.packed) part.scales[k] = statistics.take(blocks(i));
    }
  if (options_.codec && !device.is_cpu()) there_.emplace(options_.codec, device);
  if (options_.codec)
    tables_ = {tensor_of(options_.codec->table(true)), tensor_of(options_.codec->table(states_.back().with_signs))};
}

/// Elements of the slice in one element of its values: 1, or 2 codes in a byte.
std::int64_t BlockOptimizer::values_in_byte(std::size_t index) const {
  return parts_[index].packed ? options_.codec->codes_in_byte() : 1;
}

/// Where in its slice's values an element of the parameter lies.
std::int64_t BlockOptimizer::place_of(std::size_t index, std::int64_t element) const {
  const auto together = values_in_byte(index);
  return element / together - slices_[index].offset / together;
}

BlockOptimizer::Memory BlockOptimizer::memory_of(std::size_t index, const BlockRange& range) {
  const auto* mirror =
      mirrors_.empty()
          ? nullptr
          : &mirrors_[static_cast<std::size_t>(shared_->find(index, range.block) - shared_->parts().data())];
  const auto& part = parts_[index];
  const auto block = range.block - blocks_.first(slices_[index]);
  Memory memory;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    memory.bytes[k] = mirror ? mirror->bytes[k].mutable_data_ptr<std::uint8_t>()
                             : part.values[k].mutable_data_ptr<std::uint8_t>() + place_of(index, range.begin);
    memory.scales[k] =
        (mirror ? mirror->scales[k].mutable_data_ptr<float>() : part.scales[k].mutable_data_ptr<float>() + block);
  }
  return memory;
}

void BlockOptimizer::decode_codes(std::size_t state, const BlockRange& range, const Memory& memory, float* out) const {
  const auto* bytes = memory.bytes[state];
  const bool with_signs = states_[state].with_signs;
  const float scale = *memory.scales[state];
  if (options_.codec->codes_in_byte() == 1) return options_.codec->decode(with_signs, bytes, range.numel(), scale, out);
  std::array<std::uint8_t, kLargestStateBlock> codes;
  for (auto i = range.begin; i < range.end; ++i) {
    const auto byte = bytes[i / 2 - range.begin / 2];
    codes[static_cast<std::size_t>(i - range.begin)] = i % 2 == 0 ? byte >> 4 : byte & 15;
  }
  options_.codec->decode(with_signs, codes.data(), range.numel(), scale, out);
}

/// values: of the range; where its ends share a byte with another slice, also the element before or behind.
void BlockOptimizer::encode_codes(std::size_t state, BlockRange range, const Memory& memory,
                                  const float* values) const {
  const auto together = options_.codec->codes_in_byte();
  const auto before = range.begin % together;
  range.begin -= before;
  range.end += range.end % together;
  std::array<std::uint8_t, kLargestStateBlock + 2> codes;
  options_.codec->encode(states_[state].with_signs, values - before, range.numel(), *memory.scales[state],
                         codes.data());
  auto* bytes = memory.bytes[state];
  const auto count = static_cast<std::size_t>(range.numel());
  if (together == 1) {
    std::copy_n(codes.data(), count, bytes);
    return;
  }
  for (std::size_t i = 0; i < count; i += 2) *bytes++ = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
}

void BlockOptimizer::step() {
  at::NoGradGuard no_grad;
  ++steps_;
  allocate();
  check_tables();
  if (!shared_ && options_.codec) {
    std::vector<bool> packed;
    for (const auto& part : parts_) packed.push_back(part.packed);
    shared_.emplace(slices_, packed, *options_.codec, group_.get());
  }
  std::vector<at::Tensor> taken(parameters_.size());
  for (std::size_t f = 0; f < parameters_.size(); ++f) {
    const auto& p = parameters_[f];
    const auto grad = p.grad().defined() ? p.grad().contiguous() : at::Tensor();
    if (!grad.defined() || p.numel() == 0) continue;
    const auto narrow = taken[f] = grad.scalar_type() == at::kDouble ? grad.to(at::kFloat) : grad;
    if (!p.is_cpu()) {
      update_there(f, narrow);
      p.unsafeGetTensorImpl()->bump_version();
      continue;
    }
    const auto* halves = offload_ ? offload_->halves_of(p) : nullptr;
    const FlatNumbers values{halves ? nullptr : p.mutable_data_ptr(), p.scalar_type(), halves};
    const FlatNumbers gradients{const_cast<void*>(narrow.const_data_ptr()), narrow.scalar_type()};
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (slices_[i].numel == 0 || slices_[i].parameter != static_cast<std::int64_t>(f)) continue;
      offload_ ? update_offloaded(i, values, gradients) : update_slice(i, values, gradients);
    }
    p.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
    updated(f);
  }
  there_ ? update_shared_there(taken) : encode_shared();
  gradient_factor_ = 1;
}

Update BlockOptimizer::update_of(const ParameterSlice& slice) const {
  auto scalars = update(lr_ * slice.lr_scale, slice.weight_decay.value_or(options_.weight_decay));
  scalars.gradient_factor = gradient_factor_;
  return scalars;
}

void BlockOptimizer::update_slice(std::size_t index, const FlatNumbers& p, const FlatNumbers& g) {
  update_range_of(index, p, g, blocks_.first(slices_[index]), blocks_.end(slices_[index]));
}

// Piece by piece, the next one on its way, so that not even a large slice is in memory whole.
void BlockOptimizer::update_offloaded(std::size_t index, const FlatNumbers& p, const FlatNumbers& g) {
  const auto piece = kOffloadedPiece / blocks_.numel;
  const auto last = 4096 * values_in_byte(index) / blocks_.numel;  // in a page that pieces share
  const auto first = blocks_.first(slices_[index]), end = blocks_.end(slices_[index]);
  for_offloaded(index, first, first + piece, &tensor::OffloadStore::fetch);
  for (auto at = first; at < end; at += piece) {
    for_offloaded(index, at + piece, at + 2 * piece, &tensor::OffloadStore::fetch);
    update_range_of(index, p, g, at, std::min(at + piece, end));
    for_offloaded(index, std::max(first, at - last), at + piece, &tensor::OffloadStore::evict);
  }
}

void BlockOptimizer::for_offloaded(std::size_t index, std::int64_t begin, std::int64_t end,
                                   void (tensor::OffloadStore::*action)(const at::Tensor&) const) const {
  const auto& slice = slices_[index];
  end = std::min(end, blocks_.end(slice));
  if (begin >= end) return;
  const auto from = blocks_.range_in(slice, begin).begin, to = blocks_.range_in(slice, end - 1).end;
  const auto& flat = parameters_[static_cast<std::size_t>(slice.parameter)];
  ((*offload_).*action)(flat.detach().view(-1).narrow(0, slice.parameter_offset + from - slice.offset, to - from));
  const auto place = place_of(index, from), size = place_of(index, to - 1) + 1 - place;
  for (std::size_t k = 0; k < states_.size(); ++k)
    ((*offload_).*action)(parts_[index].values[k].narrow(0, place, size));
}

void BlockOptimizer::update_range_of(std::size_t index, const FlatNumbers& p, const FlatNumbers& g, std::int64_t first,
                                     std::int64_t last) {
  const auto& slice = slices_[index];
  const auto scalars = update_of(slice);
  at::parallel_for(first, last, kBlocksOfThread, [&](std::int64_t begin, std::int64_t end) {
    for (auto block = begin; block < end; ++block) {
      const auto range = blocks_.range_in(slice, block);
      update_block(scalars, index, p, g, slice.parameter_offset + range.begin - slice.offset, range);
    }
  });
}

/// `at`: of the range's first element in p and g.
void BlockOptimizer::update_block(const Update& scalars, std::size_t index, const FlatNumbers& p, const FlatNumbers& g,
                                  std::int64_t at, const BlockRange& range) {
  auto& part = parts_[index];
  const auto count = range.numel();
  auto* shared = part.packed ? shared_->find(index, range.block) : nullptr;
  const auto memory = part.packed ? memory_of(index, range) : Memory{};
  alignas(64) std::array<Block, kMaxStates> decoded;
  States<float> states{};
  for (std::size_t k = 0; k < states_.size(); ++k) {
    if (!part.packed) {
      states[k] = part.values[k].mutable_data_ptr<float>() + place_of(index, range.begin);
      continue;
    }
    states[k] = shared ? shared->own_values(k) : decoded[k].data();
    decode_codes(k, range, memory, states[k]);
  }
  alignas(64) Block p_buffer, g_buffer;
  auto* values = p.read(at, count, p_buffer.data());
  update_range(scalars, count, values, g.read(at, count, g_buffer.data()), states);
  p.write(at, count, values);
  if (shared) shared->updated = true;
  if (!part.packed || shared) return;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    float absmax = 0;
    quant::block_absmax(states[k], count, count, &absmax);
    *memory.scales[k] = options_.codec->scale_of(absmax);
    encode_codes(k, range, memory, states[k]);
  }
}

void BlockOptimizer::encode_shared() {
  if (!shared_) return;
  shared_->agree(group_.get());
  for (auto& part : shared_->parts()) {
    if (!part.updated) continue;
    part.updated = false;
    const auto memory = memory_of(part.slice, part.range);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      *memory.scales[k] = options_.codec->scale_of(shared_->absmax(part.slot, k));
      encode_codes(k, part.range, memory, part.own_values(k));
    }
  }
}

/// A checkpoint's codes mean what its tables say.
void BlockOptimizer::check_tables() {
  if (!options_.codec || !tables_[0].defined()) return;
  const std::array<bool, 2> with_signs = {true, states_.back().with_signs};
  for (std::size_t t = 0; t < 2; ++t) {
    const auto known = options_.codec->table(with_signs[t]);
    if (std::memcmp(tables_[t].const_data_ptr<float>(), known.data(), known.size_bytes()) == 0) continue;
    throw CheckpointError(
        "the optimizer state that was loaded has codes of another table than " + options_.codec->maker() + "'s (" +
            options_.codec->name_of(StatePart::kTable, static_cast<int>(t) + 1) + "); begin without it",
        "");
  }
}

std::vector<StateSlice> BlockOptimizer::state() {
  allocate();
  std::vector<StateSlice> result;
  for (std::size_t first = 0; first < slices_.size();) {
    auto last = first;  // the slices of one parameter stay together
    while (last < slices_.size() && slices_[last].name == slices_[first].name) ++last;
    const auto numel = c10::multiply_integers(slices_[first].shape);
    const auto blocks = (numel + blocks_.numel - 1) / blocks_.numel, together = values_in_byte(first);
    const bool packed = parts_[first].packed;
    const auto name = [&](StatePart part, int number) {
      return options_.codec ? options_.codec->name_of(part, number) : bnb_state_name(part, number);
    };
    const auto add = [&](std::size_t k, StatePart of, std::vector<std::int64_t> shape, std::int64_t size,
                         const auto& describe) {
      if (states_[k].parts > 1) shape.insert(shape.begin(), states_[k].parts);
      for (auto i = first; i < last; ++i) {
        StateSlice part;
        describe(i, part);
        part.parameter = slices_[i].name;
        part.state = name(of, states_[k].number);
        part.shape = shape;
        part.offset += states_[k].part * size;
        result.push_back(std::move(part));
      }
    };
    const auto begins_inside = [&](std::size_t i, std::int64_t of) {
      return slices_[i].numel > 0 && slices_[i].offset % of != 0 ? 1 : 0;
    };
    const auto shape = together == 1 ? slices_[first].shape : std::vector{numel / together};
    for (std::size_t k = 0; k < states_.size(); ++k)
      add(k, packed ? StatePart::kCodes : StatePart::kValues, shape, numel / together,
          [&](std::size_t i, StateSlice& part) {
            part.offset = slices_[i].offset / together;
            part.local = parts_[i].values[k];
            part.repeated = begins_inside(i, together);
          });
    for (std::size_t k = 0; packed && k < states_.size(); ++k)
      add(k, StatePart::kScales, {blocks}, blocks, [&](std::size_t i, StateSlice& part) {
        part.offset = blocks_.first(slices_[i]);
        part.local = parts_[i].scales[k];
        part.repeated = begins_inside(i, blocks_.numel);
      });
    for (int m = 1; packed && m <= states_.back().number; ++m) {
      const auto& table = tables_[static_cast<std::size_t>(m) - 1];
      result.push_back({slices_[first].name, name(StatePart::kTable, m), {table.numel()}, 0, table, true});
    }
    first = last;
  }
  return result;
}

}  // namespace tessera::optim
