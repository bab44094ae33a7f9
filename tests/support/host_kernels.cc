// Compiled with -ffp-contract=off: dropout, 4-bit values, rotation and Adam have the bits of the GPU.
#include "host_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/formulas.h"
#include "tensor/random_bits.h"

namespace tessera::test {
namespace {

constexpr int kUnknown = 1;  // the code of arguments that no kernel knows

struct BFloat16 {
  std::uint16_t bits;
};
struct Half {
  std::uint16_t bits;
};

float widened(float x) {
  return x;
}
float widened(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
float widened(Half x) {
  const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(digits), -24)
                              : std::ldexp(static_cast<float>(digits + 1024), exponent - 25);
  if (exponent == 31) value = digits == 0 ? INFINITY : NAN;
  return sign != 0 ? -value : value;
}

void narrow_to(float& y, float x) {
  y = x;
}
void narrow_to(BFloat16& y, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  y.bits = static_cast<std::uint16_t>(std::isnan(x) ? 0x7FFFu : rounded);
}
void narrow_to(Half& y, float x) {
  const auto sign = std::signbit(x) ? 0x8000u : 0u;
  const float size = std::fabs(x);
  std::uint32_t bits = 0;
  if (std::isnan(x)) {
    y.bits = 0x7FFF;
    return;
  }
  if (size >= 65520.0f) {
    bits = 0x7C00;
  } else if (size >= 0x1p-14f) {  // a carry of the digits raises the exponent
    const auto full = std::bit_cast<std::uint32_t>(size);
    bits = (full - (112u << 23) + 0xFFFu + (full >> 13 & 1u)) >> 13;
  } else {
    bits = static_cast<std::uint32_t>(std::nearbyint(size * 0x1p24f));
  }
  y.bits = static_cast<std::uint16_t>(sign | bits);
}
template <class T>
T narrowed(float x) {
  T y;
  narrow_to(y, x);
  return y;
}

template <class F>
int with_dtype(DeviceDtype dtype, const F& f) {
  switch (dtype) {
    case kDeviceFloat:
      f.template operator()<float>();
      return 0;
    case kDeviceBFloat16:
      f.template operator()<BFloat16>();
      return 0;
    case kDeviceHalf:
      f.template operator()<Half>();
      return 0;
  }
  return kUnknown;
}

const char* error_text(int code) {
  return code == 0 ? "no error" : "invalid argument";
}

int rotary(void*, const DeviceRotary* args) {
  const auto& a = *args;
  return with_dtype(a.dtype, [&]<class T>() {
    for (std::int64_t row = 0; row < a.tokens * a.heads; ++row) {
      const auto token = row / a.heads, head = row % a.heads;
      const T* x = static_cast<const T*>(a.x) + token * a.token_stride + head * a.head_stride;
      T* y = static_cast<T*>(a.y) + row * a.size;
      for (std::int64_t i = 0; i < a.half; ++i) {
        const auto angle = a.positions[token] * a.half + i, first = a.neighbours ? 2 * i : i,
                   second = a.neighbours ? first + 1 : i + a.half;
        const auto z = cuda::turned({widened(x[first]), widened(x[second])}, a.cos[angle], a.direction * a.sin[angle]);
        y[first] = narrowed<T>(z.a), y[second] = narrowed<T>(z.b);
      }
      std::copy(x + 2 * a.half, x + a.size, y + 2 * a.half);
    }
  });
}

template <class T, class Kind>
void gate_loop(const DeviceGate& a) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const T *x = static_cast<const T*>(a.x) + row * a.x_stride, *gradient = static_cast<const T*>(a.gradient);
    const T* ups = a.up == nullptr ? nullptr : static_cast<const T*>(a.up) + row * a.up_stride;
    for (std::int64_t i = 0; i < a.n; ++i) {
      const auto at = row * a.n + i;
      const Kind here(widened(x[i]));
      const float up = ups == nullptr ? 1.0f : widened(ups[i]), v = here.value();
      const float g = gradient == nullptr ? 0.0f : widened(gradient[at]);
      if (gradient != nullptr) static_cast<T*>(a.x_gradient)[at] = narrowed<T>(g * up * here.slope());
      if (gradient != nullptr && ups != nullptr) static_cast<T*>(a.up_gradient)[at] = narrowed<T>(g * v);
      if (a.value != nullptr) static_cast<T*>(a.value)[at] = narrowed<T>(v * up);
    }
  }
}

int gate(void*, const DeviceGate* args) {
  const auto& a = *args;
  if (a.activation < kDeviceSilu || a.activation > kDeviceReluSquared) return kUnknown;
  return with_dtype(a.dtype, [&]<class T>() {
    switch (a.activation) {
      case kDeviceSilu:
        return gate_loop<T, cuda::Silu>(a);
      case kDeviceGelu:
        return gate_loop<T, cuda::Gelu>(a);
      case kDeviceGeluTanh:
        return gate_loop<T, cuda::GeluTanh>(a);
      case kDeviceQuickGelu:
        return gate_loop<T, cuda::QuickGelu>(a);
      case kDeviceReluSquared:
        return gate_loop<T, cuda::ReluSquared>(a);
    }
  });
}

int dropout(void*, const DeviceDropout* args) {
  const auto& a = *args;
  return with_dtype(a.dtype, [&]<class T>() {
    for (std::int64_t at = 0; at < a.rows * a.n; ++at) {
      const auto row = at / a.n;
      const tensor::RandomKey key{a.keys[2 * row] ^ a.draw_a, a.keys[2 * row + 1] ^ a.draw_b};
      const bool kept = tensor::random_bits(key, static_cast<std::uint32_t>(at % a.n)) >= a.threshold;
      const float masked = widened(static_cast<const T*>(a.x)[at]) * (kept ? a.scale : 0.0f);
      const auto* base = static_cast<const T*>(a.base);
      static_cast<T*>(a.y)[at] = narrowed<T>(base == nullptr ? masked : widened(base[at]) + masked);
    }
  });
}

/// A row of logits z, in double.
struct Row {
  std::vector<double> z;
  std::int64_t largest = 0;
  double lse = 0, mean = 0;
};

template <class T>
Row read_row(const DeviceCrossEntropy& a, const T* x) {
  Row row;
  const auto n = static_cast<std::size_t>(a.classes);
  row.z.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double scaled = static_cast<double>(widened(x[i])) * a.scale;
    row.z[i] = a.softcap > 0 ? a.softcap * std::tanh(scaled / a.softcap) : scaled;
    row.mean += row.z[i];
  }
  row.mean /= static_cast<double>(n);
  row.largest = std::max_element(row.z.begin(), row.z.end()) - row.z.begin();
  const double top = row.z[static_cast<std::size_t>(row.largest)];
  for (const double z : row.z) row.lse += std::exp(z - top);
  row.lse = top + std::log(row.lse);
  return row;
}

template <class T>
void cross_entropy_row(const DeviceCrossEntropy& a, std::int64_t r) {
  T* x = static_cast<T*>(a.logits) + r * a.classes;
  const auto row = read_row(a, x);
  const auto label = a.labels[r];
  if (a.predictions != nullptr) a.predictions[r] = row.largest;
  const double chosen = label < 0 ? 0 : label < a.classes ? row.z[static_cast<std::size_t>(label)] : NAN;
  const double smoothing = a.dft ? 0 : a.smoothing, p = a.dft ? std::exp(chosen - row.lse) : 1;
  const double loss = (row.lse - chosen) * p + (smoothing > 0 ? smoothing * (chosen - row.mean) : 0);
  a.losses[r] = label < 0 ? 0.0f : static_cast<float>(loss);
  if (!a.backward) return;
  const double factor = static_cast<double>(a.factor) * a.scale * p;
  for (std::int64_t i = 0; i < a.classes; ++i) {
    const double z = row.z[static_cast<std::size_t>(i)];
    double g = std::exp(z - row.lse) - smoothing / static_cast<double>(a.classes) + (i == label ? smoothing - 1 : 0);
    if (a.softcap > 0) g *= 1 - z / a.softcap * (z / a.softcap);
    x[i] = narrowed<T>(label < 0 ? 0.0f : static_cast<float>(g * factor));
  }
}

int cross_entropy(void*, const DeviceCrossEntropy* args) {
  if (args->classes <= 0) return 0;
  return with_dtype(args->dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < args->rows; ++r) cross_entropy_row<T>(*args, r);
  });
}

int four_bit(void*, const DeviceFourBit* args) {
  const auto& a = *args;
  return with_dtype(a.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < a.numel; ++i) {
      const auto block = i / a.block;
      float scale;
      if (a.absmax != nullptr)
        scale = a.absmax[block];
      else
        scale = cuda::add(cuda::mul(a.map[a.absmax_codes[block]], a.nested_absmax[block / a.nested_block]),
                          *a.nested_offset);
      const auto byte = a.codes[i / 2];
      static_cast<T*>(a.values)[i] = narrowed<T>(a.table[i % 2 == 0 ? byte >> 4 : byte & 15] * scale);
    }
  });
}

int adam(void*, const DeviceAdam* args) {
  const auto& a = *args;
  const auto numbers = cuda::adam_numbers(a);
  const float factor = a.factor == nullptr ? 1.0f : *a.factor;
  const int code = with_dtype(a.gradient_dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < a.numel; ++i)
      cuda::adam_step(numbers, widened(static_cast<const T*>(a.gradient)[i]) * factor, a.p[i], a.m[i], a.v[i]);
  });
  if (code != 0 || a.low == nullptr) return code;
  return with_dtype(a.low_dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < a.numel; ++i) static_cast<T*>(a.low)[i] = narrowed<T>(a.p[i]);
  });
}

std::vector<float> moment_of(const DeviceBlockAdam& a, const DeviceMoment& moment, std::int64_t begin,
                             std::int64_t end) {
  std::vector<float> x;
  for (auto i = begin; i < end; ++i) {
    const auto byte = moment.codes[i / a.codes_in_byte];
    const auto code = a.codes_in_byte == 1 ? byte : i % 2 == 0 ? byte >> 4 : byte & 15;
    x.push_back(moment.values[code] * moment.scales[begin * a.codes_in_byte / 256]);
  }
  return x;
}

template <class Rule>
void keep_moment(const DeviceBlockAdam& a, const DeviceMoment& moment, std::int64_t begin,
                 const std::vector<float>& x) {
  float scale = a.least_scale;
  for (const float value : x) scale = std::isnan(value) || std::fabs(value) > scale ? std::fabs(value) : scale;
  moment.scales[begin * a.codes_in_byte / 256] = scale;
  const float* end = moment.thresholds + (a.codes_in_byte == 1 ? 255 : 15);
  for (std::size_t k = 0; k < x.size(); ++k) {
    const float measured = Rule::measured(x[k], Rule::measure_of(scale));
    const auto code = std::partition_point(moment.thresholds, end, [&](float t) { return measured >= t; });
    const auto i = begin + static_cast<std::int64_t>(k);
    auto& byte = moment.codes[i / a.codes_in_byte];
    const auto bits = static_cast<int>(code - moment.thresholds);
    byte = static_cast<std::uint8_t>(a.codes_in_byte == 1 ? bits : i % 2 == 0 ? bits << 4 : byte | bits);
  }
}

template <class Rule>
int block_adam_loop(const DeviceBlockAdam& a) {
  const Rule rule(a);
  const float factor = a.factor == nullptr ? 1.0f : *a.factor;
  const std::int64_t block = 256 / a.codes_in_byte;
  return with_dtype(a.gradient_dtype, [&]<class T>() {
    for (std::int64_t begin = 0; begin < a.numel; begin += block) {
      const auto end = std::min(begin + block, a.numel);
      auto m = moment_of(a, a.m, begin, end), v = moment_of(a, a.v, begin, end);
      for (auto i = begin; i < end; ++i) {
        const auto k = static_cast<std::size_t>(i - begin);
        rule.step(widened(static_cast<const T*>(a.gradient)[i]) * factor, a.p[i], m[k], v[k]);
      }
      keep_moment<Rule>(a, a.m, begin, m), keep_moment<Rule>(a, a.v, begin, v);
    }
  });
}

int block_adam(void*, const DeviceBlockAdam* args) {
  const auto& a = *args;
  if (a.numel <= 0) return 0;
  const bool whole_bytes = a.codes_in_byte == 1 || (a.codes_in_byte == 2 && a.numel % 2 == 0);
  if (a.rule == kDeviceBnbAdam && a.codes_in_byte == 1) return block_adam_loop<cuda::BnbAdam>(a);
  if (a.rule == kDeviceTorchaoAdam && whole_bytes) return block_adam_loop<cuda::TorchaoAdam>(a);
  return kUnknown;
}

int squares(void*, const DeviceSquares* args) {
  const auto& a = *args;
  if (a.parts <= 0) return 0;
  const auto part = (a.numel + a.parts - 1) / a.parts;
  return with_dtype(a.dtype, [&]<class T>() {
    for (std::int64_t b = 0; b < a.parts; ++b) {
      double sum = 0;
      for (auto i = b * part; i < std::min((b + 1) * part, a.numel); ++i) {
        const double value = widened(static_cast<const T*>(a.x)[i]);
        sum += value * value;
      }
      a.sums[b] = sum;
    }
  });
}

int rank_sum(void*, const DeviceRankSum* args) {
  const auto& a = *args;
  return with_dtype(a.dtype, [&]<class T>() {
    const int code = with_dtype(a.out_dtype, [&]<class Out>() {
      for (std::int64_t i = 0; i < a.numel; ++i) {
        float sum = 0;
        for (std::int64_t k = 0; k < a.count; ++k) {
          const float x = widened(static_cast<const T*>(a.inputs)[k * a.numel + i]);
          sum = k == 0 ? x : sum + x;
        }
        sum *= a.scale;
        auto& out = static_cast<Out*>(a.out)[i];
        out = narrowed<Out>(a.accumulate ? sum + widened(out) : sum);
      }
    });
    static_cast<void>(code);
  });
}

int capability(std::int32_t* value) {
  *value = 0;
  return 0;
}

std::map<std::uintptr_t, std::int64_t> registered;  // bytes by address
bool refuses = false;
std::mutex mutex;

int host_register(void* memory, std::int64_t bytes) {
  const std::lock_guard lock(mutex);
  return !refuses && registered.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes).second ? 0 : 1;
}

int host_unregister(void* memory) {
  const std::lock_guard lock(mutex);
  return registered.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1 ? 0 : 1;
}

}  // namespace

std::int64_t registered_regions() {
  const std::lock_guard lock(mutex);
  return static_cast<std::int64_t>(registered.size());
}

bool is_registered(const void* address) {
  const std::lock_guard lock(mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto next = registered.upper_bound(at);
  if (next == registered.begin()) return false;
  const auto& [begin, bytes] = *std::prev(next);
  return at < begin + static_cast<std::uintptr_t>(bytes);
}

void refuse_to_register(bool refuse) {
  const std::lock_guard lock(mutex);
  refuses = refuse;
}

const DeviceKernels* host_kernels() {
  static constexpr DeviceKernels kTable = {
      kDeviceKernelsVersion, error_text, capability, host_register, host_unregister, rotary,  gate, dropout,
      cross_entropy,         four_bit,   adam,       block_adam,    squares,         rank_sum};
  return &kTable;
}

}  // namespace tessera::test
