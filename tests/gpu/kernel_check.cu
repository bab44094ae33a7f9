// kernel_check LIBRARY: holds each kernel of libtessera_cuda.so, on the GPU here, against its loop on the CPU
// (support/host_kernels.h): results of many sizes, alignments and options, bytes around them, equal bits in a second
// run; and measures its rate beside that of a copy on the device. A line of JSON a measurement; exits 1 if anything
// failed.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/elements.cuh"
#include "support/host_kernels.h"
#include "tensor/random_bits.h"

using namespace tessera;

namespace {

cudaStream_t stream;
const DeviceKernels* kernels;
double copy_rate = 0;  // GB/s, bytes read and written

void need(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "kernel_check: %s\n", cudaGetErrorString(code));
  std::exit(2);
}

std::size_t size_of(DeviceDtype dtype) {
  return dtype == kDeviceFloat ? 4 : 2;
}
constexpr DeviceDtype kDtypes[] = {kDeviceFloat, kDeviceBFloat16, kDeviceHalf};
constexpr std::uint32_t kSeed = 20240607;

/// Of a bell between -3 * size and 3 * size.
__host__ __device__ float random_value(std::uint32_t seed, std::int64_t i, float size) {
  const tensor::RandomKey key{seed, static_cast<std::uint32_t>(i >> 30)};
  float sum = -3.0f;
  for (std::uint32_t k = 0; k < 4; ++k)
    sum +=
        static_cast<float>(tensor::random_bits(key, static_cast<std::uint32_t>(i) * 4 + k) >> 8) * (1.5f / (1 << 24));
  return sum * size;
}

void put(std::byte* to, DeviceDtype dtype, float value) {
  if (dtype == kDeviceFloat) std::memcpy(to, &value, 4);
  const auto b = __float2bfloat16_rn(value);
  const auto h = __float2half_rn(value);
  if (dtype == kDeviceBFloat16) std::memcpy(to, &b, 2);
  if (dtype == kDeviceHalf) std::memcpy(to, &h, 2);
}
double get(const std::byte* from, DeviceDtype dtype) {
  float f;
  __nv_bfloat16 b;
  __half h;
  if (dtype == kDeviceFloat) return std::memcpy(&f, from, 4), f;
  if (dtype == kDeviceBFloat16) return std::memcpy(&b, from, 2), __bfloat162float(b);
  return std::memcpy(&h, from, 2), __half2float(h);
}

struct Tolerance {
  double relative = 0, absolute = 0;
  std::vector<double> of_element;  // absolute too, where there are any
};

/// The arrays of one call, on the device and on the CPU, with a guard of bytes on both sides. An array has the bits
/// that the CPU's loop leaves in it, unless it has a tolerance: then it is within that, and a unit of the last place of
/// 16 bits.
class Case {
 public:
  explicit Case(std::string name) : name_(std::move(name)) {}
  ~Case() {
    for (auto& a : arrays_) cudaFree(a.device);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  template <class T>
  int raw(const std::vector<T>& values, std::size_t shift = 0) {
    const int i = space(values.size() * sizeof(T), shift * sizeof(T));
    std::memcpy(arrays_.back().initial.data() + arrays_.back().begin, values.data(), values.size() * sizeof(T));
    return i;
  }
  /// Random, `shift` elements behind an address of 16 bytes.
  int in(std::int64_t numel, DeviceDtype dtype, float size, std::size_t shift = 0) {
    const int i = out(numel, dtype, shift);
    for (std::int64_t k = 0; k < numel; ++k) set(i, k, random_value(kSeed + static_cast<std::uint32_t>(i), k, size));
    return i;
  }
  /// NaNs that the kernel has to write over.
  int out(std::int64_t numel, DeviceDtype dtype, std::size_t shift = 0) {
    const int i = space(static_cast<std::size_t>(numel) * size_of(dtype), shift * size_of(dtype));
    arrays_.back().dtype = dtype;
    return i;
  }
  void set(int i, std::int64_t k, float value) {
    auto& a = arrays_[i];
    put(a.initial.data() + a.begin + static_cast<std::size_t>(k) * size_of(a.dtype), a.dtype, value);
  }
  float value(int i, std::int64_t k) const {
    const auto& a = arrays_[i];
    return static_cast<float>(
        get(a.initial.data() + a.begin + static_cast<std::size_t>(k) * size_of(a.dtype), a.dtype));
  }
  void within(int i, Tolerance tolerance) {
    arrays_[i].exact = false;
    arrays_[i].tolerance = std::move(tolerance);
  }
  void is_double(int i) { arrays_[i].is_double = true; }
  void same(int i, int j) { same_.emplace_back(i, j); }

  template <class T>
  T* at(int i) {
    auto& a = arrays_[i];
    return reinterpret_cast<T*>((on_device_ ? a.device : a.host()) + a.begin);
  }

  /// Empty, or what is wrong.
  std::string check(const std::function<int(const DeviceKernels&, void*)>& call) {
    std::vector<std::vector<std::byte>> results[2];
    for (auto& result : results) {
      on_device_ = true;
      for (auto& a : arrays_) {
        if (a.device == nullptr) need(cudaMalloc(&a.device, a.initial.size()));
        need(cudaMemcpy(a.device, a.initial.data(), a.initial.size(), cudaMemcpyHostToDevice));
      }
      const int code = call(*kernels, stream);
      if (code != 0) return name_ + ": " + kernels->error_text(code);
      need(cudaStreamSynchronize(stream));
      for (auto& a : arrays_) {
        result.emplace_back(a.initial.size());
        need(cudaMemcpy(result.back().data(), a.device, a.initial.size(), cudaMemcpyDeviceToHost));
      }
    }
    if (results[0] != results[1]) return name_ + ": two runs have different bits";
    on_device_ = false;
    for (auto& a : arrays_) std::memcpy(a.host(), a.initial.data(), a.initial.size());
    if (call(*test::host_kernels(), nullptr) != 0) return name_ + ": the CPU's loop refuses";
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      auto why = difference(arrays_[i], results[0][i]);
      if (!why.empty()) return name_ + ", array " + std::to_string(i) + ": " + why;
    }
    for (const auto& [i, j] : same_)
      if (std::memcmp(results[0][i].data() + arrays_[i].begin, results[0][j].data() + arrays_[j].begin,
                      arrays_[i].bytes))
        return name_ + ": arrays " + std::to_string(i) + " and " + std::to_string(j) + " have different bits";
    return "";
  }

 private:
  static constexpr std::size_t kGuard = 256;
  struct Array {
    std::size_t bytes = 0, begin = 0;
    std::vector<std::byte> initial, storage;
    std::byte* device = nullptr;
    DeviceDtype dtype = kDeviceFloat;
    bool exact = true, is_double = false;
    Tolerance tolerance;
    std::byte* host() {
      const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
      return storage.data() + (256 - address % 256) % 256;
    }
  };

  int space(std::size_t bytes, std::size_t shift) {
    Array a;
    a.bytes = bytes, a.begin = kGuard + shift;
    a.initial.assign(a.begin + bytes + kGuard, std::byte{0xFF});
    a.storage.resize(a.initial.size() + 256);
    arrays_.push_back(std::move(a));
    return static_cast<int>(arrays_.size()) - 1;
  }

  static std::string difference(Array& a, const std::vector<std::byte>& found) {
    const auto* host = a.host();
    const auto end = a.begin + a.bytes;
    if (std::memcmp(found.data(), host, a.begin) != 0) return "bytes before it are written";
    if (std::memcmp(found.data() + end, host + end, found.size() - end) != 0) return "bytes behind it are written";
    if (std::memcmp(found.data() + a.begin, host + a.begin, a.bytes) == 0) return "";
    const auto size = a.is_double ? 8 : size_of(a.dtype);
    for (std::size_t k = 0; k < a.bytes / size; ++k) {
      const auto *f = found.data() + a.begin + k * size, *h = host + a.begin + k * size;
      double x, y;
      if (a.is_double)
        std::memcpy(&x, f, 8), std::memcpy(&y, h, 8);
      else
        x = get(f, a.dtype), y = get(h, a.dtype);
      const double place = a.is_double || a.dtype == kDeviceFloat ? 0 : a.dtype == kDeviceBFloat16 ? 0x1p-7 : 0x1p-10;
      double most = a.tolerance.absolute + (a.tolerance.relative + place) * std::fabs(y);
      if (!a.is_double && a.dtype == kDeviceHalf) most += 0x1p-24;
      if (!a.tolerance.of_element.empty()) most += a.tolerance.of_element[k];
      const bool equal = a.exact ? std::memcmp(f, h, size) == 0
                                 : (std::isnan(x) && std::isnan(y)) || x == y || std::fabs(x - y) <= most;
      if (equal) continue;
      char text[160];
      std::snprintf(text, sizeof text, "element %zu of %zu is %.9g, not %.9g", k, a.bytes / size, x, y);
      return text;
    }
    return a.exact ? "its last bytes differ" : "";
  }

  std::string name_;
  bool on_device_ = true;
  std::vector<Array> arrays_;
  std::vector<std::pair<int, int>> same_;
};

template <class... Args>
std::string text(const char* format, Args... args) {
  char out[200];
  std::snprintf(out, sizeof out, format, args...);
  return out;
}

// Each check_...() tells the first thing that is wrong, or "".

std::string check_rotary() {
  struct Shape {
    std::int64_t tokens, heads, size, half;
    int layout;  // 0: contiguous, 1: part of a wider row, 2: heads first
    std::size_t shift;
  };
  const Shape shapes[] = {{1, 1, 2, 1, 0, 0},      {3, 2, 128, 64, 0, 0}, {17, 5, 96, 16, 0, 0},
                          {7, 3, 20, 5, 0, 0},     {5, 4, 64, 32, 1, 0},  {9, 4, 64, 32, 2, 0},
                          {9, 4, 64, 32, 2, 1},    {33, 8, 80, 40, 0, 3}, {300, 32, 128, 64, 1, 0},
                          {31, 1, 256, 128, 0, 0}, {6, 2, 7, 3, 1, 0},    {4, 3, 24, 0, 0, 0}};
  for (const auto& s : shapes)
    for (const auto dtype : kDtypes)
      for (const int way : {0, 1, 2, 3}) {
        Case c(text("dtype %d, [%lld, %lld, %lld], half %lld, layout %d, shift %zu, way %d", dtype, (long long)s.tokens,
                    (long long)s.heads, (long long)s.size, (long long)s.half, s.layout, s.shift, way));
        const std::int64_t token_stride = s.layout == 2 ? s.size : s.heads * s.size * (s.layout == 1 ? 3 : 1),
                           head_stride = s.layout == 2 ? s.size * s.tokens : s.size, places = s.tokens + 5;
        const int x = c.in((s.tokens - 1) * token_stride + (s.heads - 1) * head_stride + s.size, dtype, 1, s.shift),
                  y = c.out(s.tokens * s.heads * s.size, dtype, s.shift);
        const int cos = c.in(places * s.half, kDeviceFloat, 0.4f), sin = c.in(places * s.half, kDeviceFloat, 0.4f);
        std::vector<std::int64_t> positions(static_cast<std::size_t>(s.tokens));
        for (std::size_t i = 0; i < positions.size(); ++i)
          positions[i] = (static_cast<std::int64_t>(i) * 7 + 3) % places;
        const int at = c.raw(positions);
        const auto why = c.check([&](const DeviceKernels& k, void* queue) {
          const DeviceRotary a{c.at<void>(x),
                               c.at<void>(y),
                               dtype,
                               s.tokens,
                               s.heads,
                               s.size,
                               token_stride,
                               head_stride,
                               c.at<float>(cos),
                               c.at<float>(sin),
                               c.at<std::int64_t>(at),
                               s.half,
                               way % 2 == 1,
                               way / 2 == 0 ? 1.0f : -1.0f};
          return k.rotary(queue, &a);
        });
        if (!why.empty()) return why;
      }
  return "";
}

std::string check_gate() {
  struct Shape {
    std::int64_t rows, n;
    bool halves;  // x and up are those of one row
    std::size_t shift;
  };
  const Shape shapes[] = {{1, 1, false, 0},    {3, 7, true, 0},    {5, 64, true, 0},     {4, 1000, false, 0},
                          {4, 1000, false, 1}, {2, 4104, true, 0}, {700, 256, false, 0}, {3, 20011, true, 1}};
  for (const auto& s : shapes)
    for (const auto dtype : kDtypes)
      for (int kind = kDeviceSilu; kind <= kDeviceReluSquared; ++kind)
        for (const bool with_up : {true, false}) {
          Case c(text("dtype %d, activation %d, [%lld, %lld], halves %d, shift %zu, up %d", dtype, kind,
                      (long long)s.rows, (long long)s.n, s.halves, s.shift, with_up));
          const auto stride = s.halves ? 2 * s.n : s.n, numel = s.rows * s.n;
          const int x = c.in(s.rows * stride, dtype, 3, s.shift), other = c.in(s.halves ? 1 : numel, dtype, 1, s.shift);
          const int gradient = c.in(numel, dtype, 1, s.shift);
          int outs[6];
          for (auto& out : outs) c.within(out = c.out(numel, dtype, s.shift), {1e-5, 1e-5, {}});
          const int value = outs[0], again = outs[1], gx = outs[2], gu = outs[3], gx_alone = outs[4],
                    gu_alone = outs[5];
          c.same(value, again), c.same(gx, gx_alone);
          const auto why = c.check([&](const DeviceKernels& k, void* queue) {
            DeviceGate a{};
            a.x = c.at<void>(x);
            const auto* half = c.at<std::byte>(x) + static_cast<std::size_t>(s.n) * size_of(dtype);
            if (with_up) a.up = s.halves ? static_cast<const void*>(half) : c.at<void>(other);
            a.dtype = dtype, a.activation = static_cast<DeviceActivation>(kind);
            a.rows = s.rows, a.n = s.n, a.x_stride = a.up_stride = stride;
            a.value = c.at<void>(value);
            if (const int code = k.gate(queue, &a)) return code;
            a.gradient = c.at<void>(gradient);
            a.value = c.at<void>(again), a.x_gradient = c.at<void>(gx), a.up_gradient = c.at<void>(gu);
            if (const int code = k.gate(queue, &a)) return code;
            a.value = nullptr, a.x_gradient = c.at<void>(gx_alone), a.up_gradient = c.at<void>(gu_alone);
            return k.gate(queue, &a);
          });
          if (!why.empty()) return why;
        }
  return "";
}

std::string check_dropout() {
  struct Shape {
    std::int64_t rows, n;
    std::size_t shift;
  };
  const Shape shapes[] = {{1, 1, 0}, {3, 7, 0}, {64, 128, 0}, {5, 1000, 0}, {5, 1000, 1}, {2, 70001, 0}, {1500, 64, 0}};
  for (const auto& s : shapes)
    for (const auto dtype : kDtypes)
      for (const int way : {0, 1, 2, 3})  // to y, base + mask, in place, in place of base
        for (const auto& [threshold, scale] :
             {std::pair{429496729u, 1.1111112f}, std::pair{0u, 1.0f}, std::pair{0u, 0.0f}}) {
          Case c(text("dtype %d, [%lld, %lld], shift %zu, way %d, threshold %u", dtype, (long long)s.rows,
                      (long long)s.n, s.shift, way, threshold));
          const auto numel = s.rows * s.n;
          const int x = c.in(numel, dtype, 1, s.shift), base = c.in(numel, dtype, 1, s.shift),
                    y = c.out(numel, dtype, s.shift);
          std::vector<std::uint32_t> keys(static_cast<std::size_t>(2 * s.rows));
          for (std::size_t i = 0; i < keys.size(); ++i)
            keys[i] = tensor::random_bits({1, 2}, static_cast<std::uint32_t>(i));
          const int key = c.raw(keys);
          const auto why = c.check([&, threshold = threshold, scale = scale](const DeviceKernels& k, void* queue) {
            const DeviceDropout a{c.at<void>(x),
                                  way % 2 == 1 ? c.at<void>(base) : nullptr,
                                  c.at<void>(way == 2   ? x
                                             : way == 3 ? base
                                                        : y),
                                  dtype,
                                  s.rows,
                                  s.n,
                                  c.at<std::uint32_t>(key),
                                  0x12345678u,
                                  0x9ABCDEF0u,
                                  threshold,
                                  scale};
            return k.dropout(queue, &a);
          });
          if (!why.empty()) return why;
        }
  return "";
}

struct LossOptions {
  float scale, softcap, smoothing, factor;
  bool dft, backward, predictions;
};

std::string check_loss(DeviceDtype dtype, std::int64_t classes, const LossOptions& o, std::size_t shift) {
  constexpr std::int64_t kRows = 5;
  Case c(text("dtype %d, %lld classes, scale %g, softcap %g, smoothing %g, dft %d, backward %d, shift %zu", dtype,
              (long long)classes, o.scale, o.softcap, o.smoothing, o.dft, o.backward, shift));
  const int logits = c.in(kRows * classes, dtype, 2, shift);
  std::vector<std::int64_t> labels(kRows);
  for (std::int64_t r = 0; r < kRows; ++r) {
    labels[r] = r == 1 || r == 4 ? -100 : (classes - 1) * r / 3;
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < classes; ++i)
      if (c.value(logits, r * classes + i) > c.value(logits, r * classes + best)) best = i;
    for (const auto i : {best / 2, (best + classes) / 2})  // the largest, again
      c.set(logits, r * classes + i, c.value(logits, r * classes + best));
  }
  if (classes > 3) c.set(logits, 2 * classes + 2, -INFINITY);
  if (classes > 3 && o.smoothing > 0) c.set(logits, 2 * classes + 2, -20.0f);
  const int label = c.raw(labels), losses = c.out(kRows, kDeviceFloat);
  const int predictions = c.raw(std::vector<std::int64_t>(kRows, -7));
  c.within(losses, {1e-5, 1e-5, {}});
  if (o.backward) {
    const double size = std::fabs(o.factor * o.scale);
    Tolerance tolerance{3e-5, 1e-36, {}};
    tolerance.of_element.assign(static_cast<std::size_t>(kRows * classes),
                                3e-5 * o.smoothing / static_cast<double>(classes) * size);
    for (std::int64_t r = 0; r < kRows; ++r)
      if (labels[r] >= 0) tolerance.of_element[static_cast<std::size_t>(r * classes + labels[r])] = 1e-5 * size;
    c.within(logits, std::move(tolerance));
  }
  return c.check([&](const DeviceKernels& k, void* queue) {
    DeviceCrossEntropy a{};
    a.logits = c.at<void>(logits), a.dtype = dtype, a.rows = kRows, a.classes = classes;
    a.labels = c.at<std::int64_t>(label), a.losses = c.at<float>(losses);
    if (o.predictions) a.predictions = c.at<std::int64_t>(predictions);
    a.scale = o.scale, a.softcap = o.softcap, a.smoothing = o.smoothing, a.factor = o.factor;
    a.dft = o.dft, a.backward = o.backward;
    return k.cross_entropy(queue, &a);
  });
}

std::string check_cross_entropy() {
  const LossOptions options[] = {{1, 0, 0, 1, false, true, true},    {1, 0, 0.1f, 0.25f, false, true, false},
                                 {1, 30, 0, 8, false, true, true},   {0.5f, 5, 0.1f, 1, false, true, true},
                                 {0.5f, 0, 0, 2, true, true, true},  {0.25f, 10, 0.3f, 2, true, true, false},
                                 {1, 0, 0.1f, 1, false, false, true}};
  for (const std::int64_t classes : {1, 2, 7, 8, 1000, 4097, 32000, 50257, 128256})
    for (const auto dtype : kDtypes)
      for (const auto& o : options)
        for (const std::size_t shift : {0, 1}) {
          if (shift == 1 && classes > 60000) continue;
          auto why = check_loss(dtype, classes, o, shift);
          if (!why.empty()) return why;
        }
  return "";
}

std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float size) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random_value(seed, static_cast<std::int64_t>(i), size);
  return values;
}
std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(tensor::random_bits({seed, 0}, static_cast<std::uint32_t>(i)));
  return bytes;
}
const std::vector<float>& four_bit_table() {
  static const auto table = random_floats(16, 5, 0.3f);
  return table;
}

std::string check_four_bit() {
  constexpr std::int64_t kNested = 256;
  for (const std::int64_t numel : {1, 2, 3, 15, 16, 63, 64, 65, 4095, 100001, 1 << 20})
    for (const std::int64_t block : {32, 64, 4096, 96})
      for (const auto dtype : kDtypes)
        for (const int way : {0, 1, 2, 3, 4, 5}) {  // nested or not; where values, codes begin at odd addresses
          const bool nested = way % 2 == 1;
          const std::size_t shift = way / 2 == 1 ? 1 : 0, code_shift = way / 2 == 2 ? 1 : 0;
          Case c(text("dtype %d, numel %lld, block %lld, way %d", dtype, (long long)numel, (long long)block, way));
          const auto blocks = static_cast<std::size_t>((numel + block - 1) / block);
          const int codes = c.raw(random_bytes(static_cast<std::size_t>((numel + 1) / 2), 11), code_shift);
          const int values = c.out(numel, dtype, shift), absmax = c.raw(random_floats(blocks, 12, 1));
          const int scale_codes = c.raw(random_bytes(blocks, 13)), map = c.raw(random_floats(256, 14, 0.3f));
          const int outer = c.raw(random_floats((blocks + kNested - 1) / kNested, 15, 1));
          const int offset = c.raw(std::vector<float>{0.37f});
          const auto why = c.check([&](const DeviceKernels& k, void* queue) {
            DeviceFourBit a{};
            a.codes = c.at<std::uint8_t>(codes), a.values = c.at<void>(values), a.dtype = dtype;
            a.numel = numel, a.block = block, a.table = four_bit_table().data();
            if (!nested) a.absmax = c.at<float>(absmax);
            a.absmax_codes = c.at<std::uint8_t>(scale_codes), a.map = c.at<float>(map);
            a.nested_absmax = c.at<float>(outer), a.nested_offset = c.at<float>(offset), a.nested_block = kNested;
            return k.four_bit(queue, &a);
          });
          if (!why.empty()) return why;
        }
  return "";
}

std::string check_adam() {
  for (const std::int64_t numel : {1, 3, 4, 1023, 100003})
    for (const auto dtype : kDtypes)
      for (const int low : {-1, 0, 1, 2})
        for (const int way : {0, 1, 2, 3}) {  // with a factor, at odd addresses
          const std::size_t shift = way / 2;
          Case c(text("numel %lld, gradient %d, low %d, way %d", (long long)numel, dtype, low, way));
          const auto low_dtype = static_cast<DeviceDtype>(std::max(low, 0));
          const int p = c.in(numel, kDeviceFloat, 1, shift), g = c.in(numel, dtype, 0.1f, shift),
                    m = c.in(numel, kDeviceFloat, 0.1f, shift), v = c.in(numel, kDeviceFloat, 1, shift);
          for (std::int64_t i = 0; i < numel; ++i) c.set(v, i, std::fabs(c.value(v, i)) * (i % 5 == 0 ? 0.0f : 1.0f));
          const int small = c.out(numel, low_dtype, shift), factor = c.raw(std::vector<float>{0.73f});
          const auto why = c.check([&](const DeviceKernels& k, void* queue) {
            DeviceAdam a{};
            a.p = c.at<float>(p), a.gradient = c.at<void>(g), a.gradient_dtype = dtype;
            if (low >= 0) a.low = c.at<void>(small);
            a.low_dtype = low_dtype, a.m = c.at<float>(m), a.v = c.at<float>(v), a.numel = numel;
            if (way % 2 == 1) a.factor = c.at<float>(factor);
            a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.decay = 0.9999, a.step_size = 1e-3;
            a.inv_sqrt_correction2 = 3.7, a.l2 = way == 0 ? 0 : 0.01;
            return k.adam(queue, &a);
          });
          if (!why.empty()) return why;
        }
  return "";
}

/// Ascending, in [-1, 1] or above 0, denser near 0; and what lies half-way between them.
struct CodeMap {
  std::vector<float> values, thresholds;
  CodeMap(int bits, bool with_signs) {
    const int count = 1 << bits;
    for (int i = 0; i < count; ++i) {
      const float place = static_cast<float>(with_signs ? 2 * i + 1 - count : i) / static_cast<float>(count - 1);
      values.push_back(place * std::fabs(place));
      if (i > 0) thresholds.push_back((values[i - 1] + values[i]) / 2);
    }
  }
};

struct BlockAdamKind {
  const char* name;
  DeviceBlockAdamRule rule;
  std::int32_t codes_in_byte;
  int bits() const { return 8 / codes_in_byte; }
  std::int64_t block() const { return 256 / codes_in_byte; }
};
constexpr BlockAdamKind kBlockAdamKinds[] = {{"bitsandbytes, 8 bits", kDeviceBnbAdam, 1},
                                             {"torchao, 8 bits", kDeviceTorchaoAdam, 1},
                                             {"torchao, 4 bits", kDeviceTorchaoAdam, 2}};

DeviceBlockAdam block_adam_step(const BlockAdamKind& kind) {
  DeviceBlockAdam a{};
  a.rule = kind.rule, a.codes_in_byte = kind.codes_in_byte;
  a.least_scale = kind.rule == kDeviceBnbAdam ? 0.0f : 1e-12f;
  a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.rate = 1e-3, a.correction1 = 0.19, a.correction2 = 0.05;
  a.decay = kind.rule == kDeviceBnbAdam ? 0.9999 : 1e-4;
  return a;
}

/// odd: moments are the gradient and its square, gradients are thresholds, with a block of zeros, NaN and infinity.
std::string check_block_adam(const BlockAdamKind& kind, std::int64_t numel, DeviceDtype dtype, std::size_t shift,
                             bool odd) {
  Case c(text("%s, numel %lld, gradient %d, shift %zu, odd %d", kind.name, (long long)numel, dtype, shift, odd));
  const CodeMap with_signs(kind.bits(), true), without(kind.bits(), false);
  const auto bytes = static_cast<std::size_t>((numel + kind.codes_in_byte - 1) / kind.codes_in_byte);
  const auto blocks = static_cast<std::size_t>((numel + kind.block() - 1) / kind.block());
  const int p = c.in(numel, kDeviceFloat, 1, shift), g = c.in(numel, dtype, 0.1f, shift);
  for (std::int64_t i = 0; odd && i < numel; ++i) {
    const auto& t = with_signs.thresholds;
    const auto block = i / kind.block(), place = i % kind.block();
    float value = place == 0 ? 1.0f : t[static_cast<std::size_t>(i) % t.size()];
    if (block == 1) value = 0;
    if (block == 2 && place == 7) value = NAN;
    if (block == 3 && place == 127) value = -INFINITY;
    c.set(g, i, value);
  }
  int codes[2], scales[2], values[2], thresholds[2];
  for (int k = 0; k < 2; ++k) {
    const auto& map = k == 0 ? with_signs : without;
    codes[k] = c.raw(random_bytes(bytes, 21 + static_cast<std::uint32_t>(k)), shift);
    scales[k] = c.in(static_cast<std::int64_t>(blocks), kDeviceFloat, 0.1f, shift);
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(blocks); ++b)
      c.set(scales[k], b, std::fabs(c.value(scales[k], b)));
    values[k] = c.raw(map.values), thresholds[k] = c.raw(map.thresholds);
    if (odd) c.within(scales[k], {});  // of NaN any bits
  }
  if (odd) c.within(p, {});
  const int factor = c.raw(std::vector<float>{0.73f});
  return c.check([&](const DeviceKernels& k, void* queue) {
    auto a = block_adam_step(kind);
    const auto moment = [&](int i) {
      return DeviceMoment{c.at<std::uint8_t>(codes[i]), c.at<float>(scales[i]), c.at<float>(values[i]),
                          c.at<float>(thresholds[i])};
    };
    a.p = c.at<float>(p), a.gradient = c.at<void>(g), a.gradient_dtype = dtype, a.numel = numel;
    a.m = moment(0), a.v = moment(1);
    if (!odd) a.factor = c.at<float>(factor);
    if (odd) a.beta1 = a.beta2 = 0;
    return k.block_adam(queue, &a);
  });
}

std::string check_block_adam(const BlockAdamKind& kind) {
  for (const std::int64_t numel : {1, 3, 127, 128, 255, 256, 257, 1000, 2049, 100003})
    for (const auto dtype : kDtypes)
      for (const std::size_t shift : {0, 1})
        for (const bool odd : {false, true}) {
          auto why = check_block_adam(kind, kind.codes_in_byte * numel, dtype, shift, odd);
          if (!why.empty()) return why;
        }
  return "";
}

std::string check_squares() {
  for (const std::int64_t numel : {0, 1, 7, 1000, 4099, (1 << 20) + 3})
    for (const auto dtype : kDtypes)
      for (const std::int64_t parts : {1, 3, 64})
        for (const std::size_t shift : {0, 1}) {
          Case c(text("numel %lld, dtype %d, %lld parts, shift %zu", (long long)numel, dtype, (long long)parts, shift));
          const int x = c.in(numel, dtype, 1, shift),
                    sums = c.raw(std::vector<double>(static_cast<std::size_t>(parts), NAN));
          c.is_double(sums), c.within(sums, {1e-12, 0, {}});
          const auto why = c.check([&](const DeviceKernels& k, void* queue) {
            const DeviceSquares a{c.at<void>(x), dtype, numel, c.at<double>(sums), parts};
            return k.squares(queue, &a);
          });
          if (!why.empty()) return why;
        }
  return "";
}

std::string check_rank_sum() {
  for (const std::int64_t numel : {0, 1, 7, 1000, 4099})
    for (const auto dtype : kDtypes)
      for (const auto out_dtype : kDtypes)
        for (const std::int64_t count : {1, 2, 5})
          for (const bool accumulate : {false, true}) {
            Case c(text("numel %lld, dtypes %d %d, %lld ranks, accumulate %d", (long long)numel, dtype, out_dtype,
                        (long long)count, accumulate));
            const int x = c.in(numel * count, dtype, 1, 0);
            const int out = accumulate ? c.in(numel, out_dtype, 1, 0) : c.out(numel, out_dtype, 0);
            const auto why = c.check([&](const DeviceKernels& k, void* queue) {
              const DeviceRankSum a{c.at<void>(x), c.at<void>(out), dtype, out_dtype, count, numel, 0.25f, accumulate};
              return k.rank_sum(queue, &a);
            });
            if (!why.empty()) return why;
          }
  return "";
}

std::string check_refusals() {
  DeviceRotary rotary{};
  DeviceGate gate{};
  DeviceDropout dropout{};
  DeviceCrossEntropy cross_entropy{};
  DeviceFourBit four_bit{};
  DeviceAdam adam{};
  DeviceBlockAdam block_adam{};
  DeviceSquares squares{};
  if (kernels->rotary(stream, &rotary) || kernels->gate(stream, &gate) || kernels->dropout(stream, &dropout) ||
      kernels->cross_entropy(stream, &cross_entropy) || kernels->four_bit(stream, &four_bit) ||
      kernels->adam(stream, &adam) || kernels->block_adam(stream, &block_adam) || kernels->squares(stream, &squares))
    return "no elements are an error";
  squares.parts = 1, squares.dtype = static_cast<DeviceDtype>(9);
  const int code = kernels->squares(stream, &squares);
  if (code == 0 || kernels->error_text(code) == nullptr) return "an unknown dtype is no error";
  block_adam.numel = 3, block_adam.rule = kDeviceTorchaoAdam, block_adam.codes_in_byte = 2;
  if (kernels->block_adam(stream, &block_adam) == 0) return "half a byte of codes is no error";
  return "";
}

/// Memory of the device alone.
template <class T>
class Big {
 public:
  explicit Big(std::int64_t numel) : numel(numel) {
    need(cudaMalloc(&data, static_cast<std::size_t>(numel) * sizeof(T)));
  }
  ~Big() { cudaFree(data); }
  Big(const Big&) = delete;
  Big& operator=(const Big&) = delete;
  std::vector<T> part(std::int64_t begin, std::int64_t count) const {
    std::vector<T> out(static_cast<std::size_t>(count));
    need(cudaMemcpy(out.data(), data + begin, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  T* data = nullptr;
  std::int64_t numel;
};

template <class T>
__global__ void fill_kernel(T* data, std::int64_t numel, std::uint32_t seed, float size) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numel;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if constexpr (sizeof(T) == 1 || sizeof(T) == 8)
      data[i] = static_cast<T>(
          tensor::random_bits({seed, static_cast<std::uint32_t>(i >> 32)}, static_cast<std::uint32_t>(i)) %
          static_cast<std::uint32_t>(size));
    else
      data[i] = cuda::narrowed<T>(random_value(seed, i, size));
  }
}
template <class T>
std::unique_ptr<Big<T>> filled(std::int64_t numel, std::uint32_t seed, float size) {
  auto big = std::make_unique<Big<T>>(numel);
  fill_kernel<<<2048, 256, 0, stream>>>(big->data, numel, seed, size);
  need(cudaGetLastError());
  need(cudaStreamSynchronize(stream));
  return big;
}
using BFloat16 = cuda::BFloat16;

/// More elements than 31 bits count, where there is memory.
std::string check_many() {
  std::size_t free_bytes = 0, all = 0;
  need(cudaMemGetInfo(&free_bytes, &all));
  if (free_bytes < (std::size_t{16} << 30)) return "";
  {
    constexpr std::int64_t kRows = 65537, kN = 32768;
    const auto x = filled<BFloat16>(kRows * kN, 3, 1);
    const auto keys = filled<float>(2 * kRows, 4, 1);
    const auto before = x->part((kRows - 1) * kN, kN);
    const auto all_keys = keys->part(2 * (kRows - 1), 2);
    DeviceDropout a{
        x->data, nullptr, x->data,  kDeviceBFloat16, kRows, kN, reinterpret_cast<std::uint32_t*>(keys->data),
        7,       8,       1u << 30, 1.3333334f};
    if (const int code = kernels->dropout(stream, &a)) return kernels->error_text(code);
    need(cudaStreamSynchronize(stream));
    auto want = before;
    a.x = want.data(), a.y = want.data(), a.rows = 1;
    a.keys = reinterpret_cast<const std::uint32_t*>(all_keys.data());
    test::host_kernels()->dropout(nullptr, &a);
    const auto got = x->part((kRows - 1) * kN, kN);
    if (std::memcmp(got.data(), want.data(), kN * 2) != 0) return "dropout of 2^31 elements: the last row";
  }
  constexpr std::int64_t kNumel = (std::int64_t{1} << 31) + 4099, kBlock = 64, kFrom = (kNumel / kBlock - 50) * kBlock;
  const auto codes = filled<std::uint8_t>((kNumel + 1) / 2, 6, 256);
  const auto absmax = filled<float>((kNumel + kBlock - 1) / kBlock, 7, 1);
  const Big<BFloat16> values(kNumel);
  DeviceFourBit a{};
  a.codes = codes->data, a.values = values.data, a.dtype = kDeviceBFloat16, a.numel = kNumel, a.block = kBlock;
  a.table = four_bit_table().data(), a.absmax = absmax->data;
  if (const int code = kernels->four_bit(stream, &a)) return kernels->error_text(code);
  need(cudaStreamSynchronize(stream));
  const auto some_codes = codes->part(kFrom / 2, (kNumel - kFrom + 1) / 2);
  const auto some_absmax = absmax->part(kFrom / kBlock, absmax->numel - kFrom / kBlock);
  std::vector<BFloat16> want(kNumel - kFrom);
  a.codes = some_codes.data(), a.absmax = some_absmax.data(), a.values = want.data(), a.numel = kNumel - kFrom;
  test::host_kernels()->four_bit(nullptr, &a);
  const auto got = values.part(kFrom, kNumel - kFrom);
  if (std::memcmp(got.data(), want.data(), want.size() * 2) != 0) return "four_bit of 2^31 elements: the last blocks";
  return "";
}

/// GB/s, the median of 20 runs.
double rate(double bytes, const std::function<void()>& run) {
  cudaEvent_t begin, end;
  need(cudaEventCreate(&begin));
  need(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    need(cudaEventRecord(begin, stream));
    run();
    need(cudaEventRecord(end, stream));
    need(cudaEventSynchronize(end));
    float milliseconds = 0;
    need(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 3) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  return bytes / (times[times.size() / 2] * 1e6);
}

bool failed = false;

void tell(const char* name, const std::string& why, double gb_s) {
  failed = failed || !why.empty();
  std::printf("{\"kernel\": \"%s\", \"status\": \"%s\", \"why\": \"%s\", \"gb_s\": %.1f, \"share_of_copy\": %.3f}\n",
              name, why.empty() ? "ok" : "failed", why.c_str(), gb_s, copy_rate > 0 ? gb_s / copy_rate : 0);
  std::fflush(stdout);
}

void measure_copy() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const Big<std::uint8_t> from(kBytes), to(kBytes);
  copy_rate =
      rate(2.0 * kBytes, [&] { need(cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDeviceToDevice, stream)); });
  tell("copy", "", copy_rate);
}

double measure_rotary() {
  constexpr std::int64_t kTokens = 32768, kHeads = 32, kSize = 128, kHalf = 64;
  const auto x = filled<BFloat16>(kTokens * kHeads * kSize, 1, 1);
  const Big<BFloat16> y(x->numel);
  const auto cos = filled<float>(4096 * kHalf, 2, 0.3f), sin = filled<float>(4096 * kHalf, 3, 0.3f);
  const auto positions = filled<std::int64_t>(kTokens, 4, 4096);
  const DeviceRotary a{x->data, y.data,    kDeviceBFloat16, kTokens,         kHeads, kSize, kHeads * kSize,
                       kSize,   cos->data, sin->data,       positions->data, kHalf,  false, 1.0f};
  return rate(4.0 * static_cast<double>(x->numel), [&] { kernels->rotary(stream, &a); });
}

double measure_gate(bool backward, DeviceActivation activation) {
  constexpr std::int64_t kRows = 8192, kN = 14336;
  const auto x = filled<BFloat16>(kRows * kN, 1, 1), up = filled<BFloat16>(kRows * kN, 2, 1),
             gradient = filled<BFloat16>(kRows * kN, 3, 1);
  const Big<BFloat16> value(x->numel), gx(x->numel), gu(x->numel);
  DeviceGate a{};
  a.x = x->data, a.up = up->data, a.value = value.data, a.dtype = kDeviceBFloat16, a.activation = activation;
  a.rows = kRows, a.n = a.x_stride = a.up_stride = kN;
  if (backward) a.gradient = gradient->data, a.x_gradient = gx.data, a.up_gradient = gu.data;
  return rate((backward ? 12.0 : 6.0) * static_cast<double>(x->numel), [&] { kernels->gate(stream, &a); });
}

double measure_dropout() {
  constexpr std::int64_t kRows = 32768, kN = 8192;
  const auto x = filled<BFloat16>(kRows * kN, 1, 1), base = filled<BFloat16>(kRows * kN, 2, 1);
  const Big<BFloat16> y(x->numel);
  const auto keys = filled<float>(2 * kRows, 3, 1);
  const DeviceDropout a{
      x->data, base->data, y.data,   kDeviceBFloat16, kRows, kN, reinterpret_cast<std::uint32_t*>(keys->data),
      7,       8,          1u << 29, 1.1428572f};
  return rate(6.0 * static_cast<double>(x->numel), [&] { kernels->dropout(stream, &a); });
}

/// Bytes: the logits once read, once written.
double measure_cross_entropy(std::int64_t rows, std::int64_t classes, float softcap) {
  const auto logits = filled<BFloat16>(rows * classes, 1, 1);
  const auto labels = filled<std::int64_t>(rows, 2, static_cast<float>(classes));
  const Big<float> losses(rows);
  const Big<std::int64_t> predictions(rows);
  const DeviceCrossEntropy a{logits->data, kDeviceBFloat16, rows, classes, labels->data, losses.data, predictions.data,
                             1.0f,         softcap,         0.0f, 1.0f,    false,        true};
  return rate(4.0 * static_cast<double>(logits->numel), [&] { kernels->cross_entropy(stream, &a); });
}

double measure_four_bit() {
  constexpr std::int64_t kNumel = std::int64_t{1} << 29, kBlocks = kNumel / 64;
  const auto codes = filled<std::uint8_t>(kNumel / 2, 1, 256), scales = filled<std::uint8_t>(kBlocks, 2, 256);
  const auto map = filled<float>(256, 3, 1), nested = filled<float>(kBlocks / 256, 4, 1),
             offset = filled<float>(1, 5, 1);
  const Big<BFloat16> values(kNumel);
  const DeviceFourBit a{codes->data, values.data,  kDeviceBFloat16, kNumel,       64,           four_bit_table().data(),
                        nullptr,     scales->data, map->data,       nested->data, offset->data, 256};
  return rate((2.5 + 1.0 / 64) * kNumel, [&] { kernels->four_bit(stream, &a); });
}

double measure_adam() {
  constexpr std::int64_t kNumel = std::int64_t{1} << 27;
  const auto p = filled<float>(kNumel, 1, 1), m = filled<float>(kNumel, 2, 0.01f), v = filled<float>(kNumel, 3, 0);
  const auto gradient = filled<BFloat16>(kNumel, 4, 0.1f);
  const Big<BFloat16> low(kNumel);
  DeviceAdam a{};
  a.p = p->data, a.gradient = gradient->data, a.gradient_dtype = a.low_dtype = kDeviceBFloat16, a.low = low.data;
  a.m = m->data, a.v = v->data, a.numel = kNumel;
  a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.decay = 0.9999, a.step_size = 1e-3, a.inv_sqrt_correction2 = 3;
  return rate(28.0 * kNumel, [&] { kernels->adam(stream, &a); });
}

std::unique_ptr<Big<float>> uploaded(const std::vector<float>& values) {
  auto big = std::make_unique<Big<float>>(static_cast<std::int64_t>(values.size()));
  need(cudaMemcpy(big->data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return big;
}

/// Bytes: parameters, codes and scales once read and once written, gradients of 16 bits read.
double measure_block_adam(const BlockAdamKind& kind) {
  constexpr std::int64_t kNumel = std::int64_t{1} << 28;
  const auto p = filled<float>(kNumel, 1, 1);
  const auto gradient = filled<BFloat16>(kNumel, 2, 0.1f);
  auto a = block_adam_step(kind);
  std::vector<std::unique_ptr<Big<std::uint8_t>>> codes;
  std::vector<std::unique_ptr<Big<float>>> floats;
  const auto moment = [&](bool with_signs) {
    const CodeMap map(kind.bits(), with_signs);
    codes.push_back(filled<std::uint8_t>(kNumel / kind.codes_in_byte, 3, 256));
    const std::vector<float> scales(kNumel / kind.block(), 0.1f);
    for (const auto& values : {scales, map.values, map.thresholds}) floats.push_back(uploaded(values));
    const auto* last = &floats.back();
    return DeviceMoment{codes.back()->data, last[-2]->data, last[-1]->data, last[0]->data};
  };
  a.p = p->data, a.gradient = gradient->data, a.gradient_dtype = kDeviceBFloat16, a.numel = kNumel;
  a.m = moment(true), a.v = moment(false);
  const double codes_and_scales = 4.0 / kind.codes_in_byte + 16.0 / static_cast<double>(kind.block());
  return rate((10.0 + codes_and_scales) * kNumel, [&] { kernels->block_adam(stream, &a); });
}

double measure_squares() {
  constexpr std::int64_t kNumel = std::int64_t{1} << 29, kParts = 4096;
  const auto x = filled<BFloat16>(kNumel, 1, 1);
  const Big<double> sums(kParts);
  const DeviceSquares a{x->data, kDeviceBFloat16, kNumel, sums.data, kParts};
  return rate(2.0 * kNumel, [&] { kernels->squares(stream, &a); });
}

double measure_rank_sum() {
  constexpr std::int64_t kNumel = std::int64_t{1} << 26, kRanks = 4;
  const auto x = filled<BFloat16>(kNumel * kRanks, 1, 1);
  const Big<float> out(kNumel);
  const DeviceRankSum a{x->data, out.data, kDeviceBFloat16, kDeviceFloat, kRanks, kNumel, 0.25f, false};
  return rate((2.0 * kRanks + 4.0) * kNumel, [&] { kernels->rank_sum(stream, &a); });
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc == 3 && std::strcmp(argv[2], "--quick") == 0;  // no rates, for tools that slow a program down
  if (argc != 2 && !quick) {
    std::fprintf(stderr, "kernel_check LIBRARY [--quick]: the path of libtessera_cuda.so\n");
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* entry = library == nullptr ? nullptr : dlsym(library, kDeviceKernelsEntry);
  if (entry == nullptr) {
    std::fprintf(stderr, "kernel_check: %s\n", dlerror());
    return 2;
  }
  kernels = reinterpret_cast<DeviceKernelsEntry>(entry)();
  if (kernels->version != kDeviceKernelsVersion) {
    std::fprintf(stderr, "kernel_check: the library's version is %d, this program's %d\n", kernels->version,
                 kDeviceKernelsVersion);
    return 2;
  }
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (!quick) measure_copy();
  tell("refusals", check_refusals(), 0);
  tell("rotary", check_rotary(), quick ? 0 : measure_rotary());
  const auto gate = check_gate();
  tell("gate", gate, quick ? 0 : measure_gate(false, kDeviceSilu));
  tell("gate gradient", gate, quick ? 0 : measure_gate(true, kDeviceSilu));
  tell("gate gradient, gelu_tanh", gate, quick ? 0 : measure_gate(true, kDeviceGeluTanh));
  tell("gate gradient, gelu", gate, quick ? 0 : measure_gate(true, kDeviceGelu));
  tell("dropout", check_dropout(), quick ? 0 : measure_dropout());
  const auto loss = check_cross_entropy();
  tell("cross_entropy, 128256 classes", loss, quick ? 0 : measure_cross_entropy(2048, 128256, 0));
  tell("cross_entropy, 32000 classes", loss, quick ? 0 : measure_cross_entropy(8192, 32000, 0));
  tell("cross_entropy, 50257 classes", loss, quick ? 0 : measure_cross_entropy(4096, 50257, 0));
  tell("cross_entropy, 256000 classes, softcap", loss, quick ? 0 : measure_cross_entropy(1024, 256000, 30));
  tell("four_bit", check_four_bit(), quick ? 0 : measure_four_bit());
  tell("adam", check_adam(), quick ? 0 : measure_adam());
  for (const auto& kind : kBlockAdamKinds)
    tell(text("block_adam, %s", kind.name).c_str(), check_block_adam(kind), quick ? 0 : measure_block_adam(kind));
  tell("squares", check_squares(), quick ? 0 : measure_squares());
  tell("rank_sum", check_rank_sum(), quick ? 0 : measure_rank_sum());
  tell("many elements", quick ? "" : check_many(), 0);
  return failed ? 1 : 0;
}
