#include "support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>

#include "base/scoped_value.h"
#include "support/fake_streams.h"
#include "support/host_kernels.h"
#include "tensor/device_kernels.h"
#include "tessera/base/error.h"

namespace tessera::test {
namespace {

// Beyond what any process maps: reading there faults, and system calls return EFAULT.
constexpr std::uintptr_t kFakeBit = std::uintptr_t{1} << 54;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local c10::DeviceIndex current_index = 0;
thread_local bool in_operator = false;  // whose own copies count as nothing
std::function<void(int, FakeCall)> before_call;
std::atomic<bool> watches_memory{false};
std::atomic<std::int64_t> used_bytes{0}, peak_bytes{0}, limit_bytes{0}, waits{0};

void* to_fake(void* real) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(real) | kFakeBit);
}

void* to_real(void* fake) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(fake) & ~kFakeBit);
}

/// What a DataPtr of the device holds: the memory, which begins after it.
struct alignas(64) Block {
  std::size_t bytes;
  FakeStream* stream;         // that it was taken on, and is free for others behind
  std::int64_t computed = 0;  // by the device, when its computation used the memory last
  // The last copy by another stream, and whether that writes here.
  FakeStream* copier = nullptr;
  std::int64_t copied = 0;
  bool written = false;
};

std::mutex blocks_mutex;
std::map<std::uintptr_t, Block*> blocks;  // by the address of their memory, while there are fake streams

/// f(block) with the lock on it, of the memory at this address; null: unknown.
template <class F>
void with_block(const void* address, const F& f) {
  const std::lock_guard lock(blocks_mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(to_real(const_cast<void*>(address)));
  const auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return;
  const auto& [begin, block] = *std::prev(next);
  if (at < begin + block->bytes) f(*block);
}
template <class F>
void with_block(const at::Tensor& t, const F& f) {
  if (!has_fake_streams() || !t.defined() || t.is_cpu() || !t.has_storage()) return;
  with_block(t.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(), f);
}

/// Of a device's computing stream to pinned memory of the host, which has nothing of them until it waits.
struct LateCopy {
  at::Tensor from, to;  // on the CPU
};
std::mutex late_mutex;
auto& late_copies = *new std::array<std::vector<LateCopy>, kFakeDevices>;  // those that nobody waits for outlive main()
std::array<std::int64_t, kFakeDevices> host_saw{};                         // so much of what a device computed

/// The host waits for what a device computes; with `unless_seen` for so much of it, if it has not waited for that.
void wait_on_host(int index, std::optional<std::int64_t> unless_seen = {}) {
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  const auto i = static_cast<std::size_t>(index);
  const std::lock_guard lock(late_mutex);
  if (unless_seen && late_copies[i].empty() && host_saw[i] >= *unless_seen) return;
  ++waits;
  host_saw[i] = computed_by(index);
  for (const auto& copy : late_copies[i]) copy.to.copy_(copy.from);
  late_copies[i].clear();
}

bool awaits_copy(const Block& block) {
  return block.copier != nullptr && awaited(*block.copier) < block.copied;
}

/// By the stream that computes.
void use(const at::Tensor& t) {
  with_block(t, [&](Block& block) {
    block.computed = computed_by(t.device().index());
    if (block.written && awaits_copy(block)) note_fault("computation uses what a copy brings without waiting for it");
  });
}

// By device. Of this thread.
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

FakeStream* current_stream() {
  return fake_stream(current_streams[static_cast<std::size_t>(current_index)]);
}

void poison(Block* block) {
  if (has_fake_streams()) std::memset(static_cast<void*>(block + 1), 0xFF, block->bytes);
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  auto* stream = block->stream;
  {
    const std::lock_guard lock(blocks_mutex);
    blocks.erase(reinterpret_cast<std::uintptr_t>(block + 1));
    if (awaits_copy(*block)) {
      note_fault("memory is freed before a copy is done with it");
      stream = block->copier;
    }
  }
  run_on(stream, [block] {
    used_bytes -= static_cast<std::int64_t>(block->bytes);
    poison(block);
    std::free(block);
  });
}

class Memory final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    const at::Device device(kType, current_index);
    if (bytes == 0) return {nullptr, device};
    if (before_call) before_call(current_index, FakeCall::kAllocation);
    const auto wanted = static_cast<std::int64_t>(bytes), limit = limit_bytes.load();
    TORCH_CHECK_WITH(OutOfMemoryError, limit == 0 || used_bytes + wanted <= limit,
                     "fake out of memory. Tried to allocate ", wanted, " bytes.");
    void* memory = nullptr;
    if (posix_memalign(&memory, alignof(Block), sizeof(Block) + bytes) != 0) throw std::bad_alloc();
    auto* block = new (memory) Block{bytes, current_stream(), computed_by(current_index)};
    poison(block);
    if (has_fake_streams()) {
      const std::lock_guard lock(blocks_mutex);
      blocks[reinterpret_cast<std::uintptr_t>(block + 1)] = block;
    }
    const auto used = used_bytes += static_cast<std::int64_t>(bytes);
    for (auto peak = peak_bytes.load(); used > peak && !peak_bytes.compare_exchange_weak(peak, used);) {
    }
    return {to_fake(block + 1), block, &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to_real(to), to_real(const_cast<void*>(from)), bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {  // of all together
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = used_bytes;
    stats.allocated_bytes[0].peak = peak_bytes;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { peak_bytes = used_bytes.load(); }
};

Memory& memory() {
  static Memory instance;
  return instance;
}

/// All work is done when a call returns, but for what is told to another stream than the one that computes.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_index}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kFakeDevices, "no such device: ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_index = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_index;
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, current_streams[static_cast<std::size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, has_fake_streams() ? new_fake_stream() : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[static_cast<std::size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return fake_stream(stream.id()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new std::shared_ptr<FakeMark>();
    mark_of(*event) = mark(fake_stream(stream.id()), stream.device_index());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) delete &mark_of(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_for(fake_stream(stream.id()), mark_of(event));
  }
  bool queryEvent(void* event) const override {
    const bool is = event == nullptr || reached(*mark_of(event));
    if (event != nullptr && is) host_waited(*mark_of(event));
    return is;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    wait_for(nullptr, mark_of(event));
    host_waited(*mark_of(event));
    if (const auto computed = computed_at(*mark_of(event)); computed >= 0)
      wait_on_host(device_of(*mark_of(event)), computed);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    const auto end = mark(fake_stream(stream.id()), stream.device_index());
    wait_for(nullptr, end);
    if (stream.id() != 0) return host_waited(*end);
    host_waited_for_computation();
    wait_on_host(stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {}

 private:
  static std::shared_ptr<FakeMark>& mark_of(void* event) { return *static_cast<std::shared_ptr<FakeMark>*>(event); }
};

/// What pin_memory() copies into.
class PinnedHostMemory final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    auto* memory = std::malloc(std::max<std::size_t>(bytes, 1));
    if (memory == nullptr) throw std::bad_alloc();
    const std::lock_guard lock(mutex);
    pinned.insert(memory);
    return {memory, memory, &give_back, at::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  /// Whether it begins at this address.
  static bool has(const void* address) {
    const std::lock_guard lock(mutex);
    return pinned.contains(address);
  }

 private:
  static void give_back(void* memory) {
    const std::lock_guard lock(mutex);
    pinned.erase(memory);
    std::free(memory);
  }
  static inline std::mutex mutex;
  static inline std::set<const void*> pinned;
};

/// What autograd asks about an accelerator.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return is_registered(data) || PinnedHostMemory::has(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedHostMemory memory;
    return &memory;
  }
};

// Before main(): autograd counts the devices once, in the first backward of the process.
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

/// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  return at::from_blob(to_real(t.unsafeGetTensorImpl()->mutable_data()), t.sizes(), t.strides(),
                       at::TensorOptions().dtype(t.scalar_type()));
}

c10::impl::ExcludeDispatchKeyGuard without_autograd() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autograd_dispatch_keyset);
}

/// The same memory, which nobody keeps.
at::Tensor unheld(const at::Tensor& t) {
  return at::from_blob(to_real(t.unsafeGetTensorImpl()->mutable_data()), t.sizes(), t.strides(),
                       at::TensorOptions().dtype(t.scalar_type()));
}

/// As on a GPU, the caller waits unless it may go on and the host's memory is pinned.
void copy_on(FakeStream& stream, const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto& there = to.is_cpu() ? from : to;
  with_block(there, [&](const Block& block) {
    if (waited_for(stream) < block.computed) note_fault("a copy does not wait for the computation before it");
  });
  const auto target = unheld(to);
  const bool goes_on = non_blocking && (to.is_cpu() ? to : from).is_pinned();
  if (goes_on && target.is_contiguous()) std::memset(target.mutable_data_ptr(), 0xFF, target.nbytes());
  run_on(&stream, [target, source = unheld(from)] {
    const auto guard = without_autograd();
    target.copy_(source);
  });
  with_block(there, [&](Block& block) {
    block.copier = &stream;
    block.copied = told(stream);
    block.written = !to.is_cpu();
  });
  const auto index = there.device().index();
  if (!goes_on) return wait_for(nullptr, mark(&stream, index));
  count_copy();
  if (from.is_cpu()) note_read(&stream, index, from.const_data_ptr());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto guard = without_autograd();
  const auto index = (to.is_cpu() ? from : to).device().index();
  if (before_call && !in_operator) before_call(index, FakeCall::kCopy);
  if (auto* stream = fake_stream(current_streams[static_cast<std::size_t>(index)])) {
    copy_on(*stream, from, to, non_blocking);
    return to;
  }
  const bool crosses = from.is_cpu() != to.is_cpu() && !in_operator;
  const bool goes_on = crosses && non_blocking && (to.is_cpu() ? to : from).is_pinned();
  if (!to.is_cpu()) count_computation(index);
  use(from), use(to);
  if (goes_on && to.is_cpu()) {
    std::memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
    const std::lock_guard lock(late_mutex);
    late_copies[static_cast<std::size_t>(index)].push_back({on_cpu(from).clone(), to});
    return to;
  }
  if (crosses && !goes_on) wait_on_host(index);
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Device or_current(std::optional<at::Device> device) {
  return device && device->has_index() ? *device : at::Device(kType, current_index);
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(or_current(device));
  return at::Tensor(
      at::detail::empty_generic(sizes, &memory(), c10::DispatchKeySet(kKey), c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(or_current(device));
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &memory(), c10::DispatchKeySet(kKey),
                                                      c10::dtype_or_default(dtype)));
}

const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto* storage = t.storage().unsafeGetStorageImpl();
  const auto numel = static_cast<std::size_t>(t.storage_offset() + c10::multiply_integers(sizes));
  const auto needed = numel * t.dtype().itemsize();
  if (storage->nbytes() < needed) {
    const c10::DeviceGuard guard(t.device());
    auto grown = memory().allocate(needed);
    if (storage->nbytes() > 0) memory().copy_data(grown.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));
    storage->set_nbytes(needed);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

at::Tensor& set_storage(at::Tensor& t, at::Storage source, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return t;
}

at::Tensor view(const at::Tensor& t, at::IntArrayRef sizes) {
  return at::native::view(t, sizes);
}

at::Tensor as_strided(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, offset);
}

at::Tensor reshape_alias(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(t, sizes, strides);
}

at::Tensor unfold(const at::Tensor& t, std::int64_t dim, std::int64_t size, std::int64_t step) {
  return at::native::unfold(t, dim, size, step);
}

/// So that a parameter may move to the device and stay itself (torch::nn::Module::to).
bool may_take_data_of(const at::Tensor&, const at::Tensor&) {
  return true;
}

/// As on a GPU: tensors with dimensions are all on one device, but for indices, which may be the CPU's.
void check_one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<at::Device> first;
  const auto see = [&](const at::Tensor& t) {
    if (!t.defined() || t.dim() == 0) return;
    TORCH_CHECK(!first || *first == t.device(), "Expected all tensors to be on the same device, but ",
                op.schema().operator_name().name, " got ", *first, " and ", t.device());
    first = t.device();
  };
  const auto& name = op.schema().operator_name().name;
  if (name.starts_with("aten::index.") || name == "aten::index" || name.starts_with("aten::index_put") ||
      name == "aten::_index_put_impl_")
    return;
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) see(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector()) see(t);
  }
}

bool waits_on_gpu(const std::string& name) {
  for (const auto* known : {"aten::nonzero", "aten::_local_scalar_dense", "aten::equal", "aten::masked_select",
                            "aten::bincount", "aten::_unique2", "aten::repeat_interleave"})
    if (name == known) return true;
  return false;
}

/// What a GPU asks for.
void check_int8_product(const torch::jit::Stack& stack) {
  const auto factors = torch::jit::last(stack, 2);
  const auto &a = factors[0].toTensor(), &b = factors[1].toTensor();
  TORCH_CHECK(a.size(0) > 16 && a.size(1) % 8 == 0 && b.size(1) % 8 == 0, "_int_mm has no product of ", a.sizes(),
              " and ", b.sizes(), " on a GPU");
}

/// What a GPU asks for; and that no gradient is made of no rows, which is not zero on every GPU.
void check_grouped_product(const torch::jit::Stack& stack) {
  const auto inputs = torch::jit::last(stack, 5);
  const auto &a = inputs[0].toTensor(), &b = inputs[1].toTensor();
  for (const auto& t : {a, b})
    for (const auto stride : t.strides())
      TORCH_CHECK(stride == 1 || stride % 8 == 0, "_grouped_mm has no product of strides ", t.strides(), " on a GPU");
  TORCH_CHECK(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16, "_grouped_mm waits on a GPU");
  if (a.dim() == 3 || b.dim() == 3) return;
  const auto ends = inputs[2].toTensor().cpu();
  const auto *end = ends.const_data_ptr<int>(), *last = end + ends.numel();
  TORCH_CHECK(*end > 0 && std::adjacent_find(end, last, std::greater_equal<>()) == last, "a group without rows");
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_one_device(op, *stack);
  int index = current_index;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().is_cpu()) continue;
    index = value.toTensor().device().index();
    TESSERA_CHECK(current_streams[static_cast<std::size_t>(index)] == 0, "operators run on the stream that computes");
    count_computation(index);
    break;
  }
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) use(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector()) use(t);
  }
  const auto& name = op.schema().operator_name().name;
  if (name == "aten::_int_mm") check_int8_product(*stack);
  if (waits_on_gpu(name)) wait_on_host(index);
  const ScopedValue inside(in_operator, true);
  if (name == "aten::_grouped_mm") check_grouped_product(*stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

struct Registration {
  Registration()
      : operators(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__),
        others(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__) {
    c10::register_privateuse1_backend("fake");
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    c10::SetAllocator(kType, &memory());
    at::globalContext().lazyInitDevice(kType);  // without which no memory counts as pinned
    operators.impl("empty.memory_format", &empty);
    operators.impl("empty_strided", &empty_strided);
    operators.impl("_copy_from", &copy_from);
    operators.impl("_copy_from_and_resize", &copy_from_and_resize);
    operators.impl("resize_", &resize);
    operators.impl("set_.source_Storage_storage_offset", &set_storage);
    operators.impl("view", &view);
    operators.impl("as_strided", &as_strided);
    operators.impl("_reshape_alias", &reshape_alias);
    operators.impl("unfold", &unfold);
    operators.impl("_has_compatible_shallow_copy_type", &may_take_data_of);
    operators.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&fall_back>());  // no composite
    others.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
  torch::Library operators, others;
};

/// Those of the CPU, with the fake bit taken off what they are given.
class Kernels {
 public:
  static const DeviceKernels& table() {
    static const DeviceKernels kernels = made();
    return kernels;
  }
  static std::atomic<std::int64_t> launches;

 private:
  template <class T>
  static void take_off(T*& p) {
    p = static_cast<T*>(to_real(const_cast<void*>(static_cast<const void*>(p))));
  }
  template <class... T>
  static void take_off(T*&... p)
    requires(sizeof...(T) > 1)
  {
    (take_off(p), ...);
  }
  static void real(DeviceRotary& a) { take_off(a.x, a.y, a.cos, a.sin, a.positions); }
  static void real(DeviceGate& a) { take_off(a.x, a.up, a.gradient, a.value, a.x_gradient, a.up_gradient); }
  static void real(DeviceDropout& a) { take_off(a.x, a.base, a.y, a.keys); }
  static void real(DeviceCrossEntropy& a) { take_off(a.logits, a.labels, a.losses, a.predictions); }
  static void real(DeviceFourBit& a) {
    take_off(a.codes, a.values, a.absmax, a.absmax_codes, a.map, a.nested_absmax, a.nested_offset);
  }
  static void real(DeviceAdam& a) { take_off(a.p, a.gradient, a.low, a.m, a.v, a.factor); }
  static void real(DeviceMoment& m) { take_off(m.codes, m.scales, m.values, m.thresholds); }
  static void real(DeviceBlockAdam& a) {
    take_off(a.p, a.gradient, a.factor);
    real(a.m), real(a.v);
  }
  static void real(DeviceSquares& a) { take_off(a.x, a.sums); }
  static void real(DeviceRankSum& a) { take_off(a.inputs, a.out); }

  template <auto kKernel, class Arguments>
  static int run(void* stream, const Arguments* arguments) {
    ++launches;
    auto own = *arguments;
    real(own);
    if (stream == nullptr) {
      count_computation(current_index);
      return (host_kernels()->*kKernel)(nullptr, &own);
    }
    check_waits_for_computation(static_cast<FakeStream*>(stream), current_index);
    run_on(static_cast<FakeStream*>(stream), [own] { (host_kernels()->*kKernel)(nullptr, &own); });
    return 0;
  }
  static int unregister(void* memory) {
    const int code = host_kernels()->host_unregister(memory);
    if (watches_memory && any_read([](const void* from) { return !is_registered(from); }))
      note_fault("the host gives memory back from which copies may still read");
    return code;
  }
  static DeviceKernels made() {
    DeviceKernels out = *host_kernels();
    out.host_unregister = &unregister;
    out.rotary = &run<&DeviceKernels::rotary, DeviceRotary>;
    out.gate = &run<&DeviceKernels::gate, DeviceGate>;
    out.dropout = &run<&DeviceKernels::dropout, DeviceDropout>;
    out.cross_entropy = &run<&DeviceKernels::cross_entropy, DeviceCrossEntropy>;
    out.four_bit = &run<&DeviceKernels::four_bit, DeviceFourBit>;
    out.adam = &run<&DeviceKernels::adam, DeviceAdam>;
    out.block_adam = &run<&DeviceKernels::block_adam, DeviceBlockAdam>;
    out.squares = &run<&DeviceKernels::squares, DeviceSquares>;
    out.rank_sum = &run<&DeviceKernels::rank_sum, DeviceRankSum>;
    return out;
  }
};
std::atomic<std::int64_t> Kernels::launches{0};

}  // namespace

int fake_current_device() {
  return current_index;
}

void* real_address(const void* address) {
  return to_real(const_cast<void*>(address));
}

FakeKernels::FakeKernels() {
  tensor::use_device_kernels(kType, &Kernels::table());
}
FakeKernels::~FakeKernels() {
  tensor::use_device_kernels(kType, nullptr);
}
std::int64_t FakeKernels::launches() {
  return Kernels::launches;
}

at::Device fake_device(int index) {
  TESSERA_CHECK(0 <= index && index < kFakeDevices, "fake devices have indices 0 to 7");
  // Never destroyed: tensors with static lifetime may outlive it.
  static const auto* registration = new Registration();
  static_cast<void>(registration);
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

std::int64_t fake_device_bytes() {
  return used_bytes;
}

std::int64_t fake_device_waits() {
  return waits;
}

WatchedMemory::WatchedMemory() {
  watches_memory = true;
}

WatchedMemory::~WatchedMemory() {
  watches_memory = false;
}

std::int64_t fake_device_reads(int index) {
  return reads_of(index);
}

void before_fake_calls(std::function<void(int, FakeCall)> call) {
  before_call = std::move(call);
}

void limit_fake_devices(std::int64_t bytes) {
  limit_bytes = bytes;
}

}  // namespace tessera::test
