#pragma once
// Kernels for a device that is not the CPU, as a table of functions with a C ABI: libtessera_cuda.so (src/cuda) has one
// for NVIDIA's GPUs, tests have one that loops on the CPU (tests/support). No libtorch on either side.
//
// Pointers are of the device unless a comment says otherwise; strides count elements; the last dimension of a tensor is
// dense. Statistics and arithmetic are float32, results are rounded once. Every function only queues its work on
// `stream` and returns 0, or a code for error_text().
#include <cstdint>

namespace tessera {

extern "C" {

enum DeviceDtype : std::int32_t { kDeviceFloat = 0, kDeviceBFloat16 = 1, kDeviceHalf = 2 };

/// y[t, h, :] = x[t, h, :] with its first 2 * half elements turned by the angles of row positions[t]; the others are
/// copied. y: contiguous [tokens, heads, size]. direction: 1, or -1 for the gradient.
struct DeviceRotary {
  const void* x;
  void* y;
  DeviceDtype dtype;
  std::int64_t tokens, heads, size, token_stride, head_stride;
  const float *cos, *sin;         // [*, half]
  const std::int64_t* positions;  // [tokens]
  std::int64_t half;
  bool neighbours;  // (2 i, 2 i + 1) turn together, else (i, i + half)
  float direction;
};

/// As tessera::Activation, those that have kernels.
enum DeviceActivation : std::int32_t {
  kDeviceSilu = 0,
  kDeviceGelu = 1,
  kDeviceGeluTanh = 2,
  kDeviceQuickGelu = 3,
  kDeviceReluSquared = 4
};

/// value = activate(x) * up, [rows, n]; up: null stands for ones. With a gradient of the value (null: none):
/// x_gradient, up_gradient where there is an up, and value where it is not null (with the bits of the forward). Outputs
/// and `gradient` are contiguous.
struct DeviceGate {
  const void *x, *up, *gradient;
  void *value, *x_gradient, *up_gradient;
  DeviceDtype dtype;
  DeviceActivation activation;
  std::int64_t rows, n, x_stride, up_stride;
};

/// y = base + mask(x) (base null: mask(x)), [rows, n] contiguous; element (r, i) is kept when random_bits(key of row r,
/// i) >= threshold, and scaled (tensor/random_bits.h). In place allowed.
struct DeviceDropout {
  const void *x, *base;
  void* y;
  DeviceDtype dtype;
  std::int64_t rows, n;
  const std::uint32_t* keys;  // [rows, 2]: a and b of the rows' own keys; the mask's key is that, each xor the draw's
  std::uint32_t draw_a, draw_b;
  std::uint32_t threshold;
  float scale;
};

/// What becomes of logits [rows, classes], contiguous: losses[r] (0 for a row with a negative label), and in place,
/// where `backward`, the gradient: factor * d(sum of losses) / d(logits as they lie there), all zeros for a row with a
/// negative label. A logit counts as z = scale * logit, with a softcap as z = softcap * tanh(scale * logit / softcap)
/// (0: none); so the gradient has the factor `scale`, and 1 - (z / softcap)^2: `factor` is loss_scale / normalizer
/// alone. smoothing: that part of the loss is the mean of -log p over classes. dft: the loss is -p log p of the label's
/// p, where the first factor is a constant to the gradient; without smoothing then. A label beyond the classes: the
/// loss is NaN.
struct DeviceCrossEntropy {
  void* logits;
  DeviceDtype dtype;
  std::int64_t rows, classes;
  const std::int64_t* labels;  // [rows]
  float* losses;               // [rows]
  std::int64_t* predictions;   // [rows], the first index of the largest z (of every row), or null
  float scale, softcap, smoothing, factor;
  bool dft, backward;
};

/// Values of 4-bit codes (quant/four_bit_codec.h): element i has code i of `codes` (the first of a byte is in its upper
/// half), and is table[code] * absmax of its block. With nested codes, absmax of block b is
/// map[absmax_codes[b]] * nested_absmax[b / nested_block] + *nested_offset, rounded to float32 after each operation.
struct DeviceFourBit {
  const std::uint8_t* codes;
  void* values;  // [numel]
  DeviceDtype dtype;
  std::int64_t numel, block;
  const float* table;                // [16], of the host
  const float* absmax;               // [blocks], or null:
  const std::uint8_t* absmax_codes;  // [blocks]
  const float* map;                  // [256]
  const float* nested_absmax;
  const float* nested_offset;
  std::int64_t nested_block;
};

/// One step of Adam (optim/rules.h, Rule::kAdam), for all elements alone. Numbers are double, as in Update, since the
/// float32 nearest to 1 - beta2 is not 1 - the float32 nearest to beta2; they are rounded once, then as there:
///   g = gradient * factor + l2 * p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///   p = decay * p - step_size * m / (sqrt(v) * inv_sqrt_correction2 + eps)
struct DeviceAdam {
  float* p;
  const void* gradient;
  DeviceDtype gradient_dtype;
  void* low;  // where p is written too, rounded, or null
  DeviceDtype low_dtype;
  float *m, *v;
  std::int64_t numel;
  const float* factor;  // of the gradient, one number of the device, or null: 1
  double beta1, beta2, eps, decay, step_size, inv_sqrt_correction2, l2;
};

/// Whose AdamW over codes: where it rounds (optim/update.cc), and how a value gets its code (optim/state_codec.h).
enum DeviceBlockAdamRule : std::int32_t { kDeviceBnbAdam = 0, kDeviceTorchaoAdam = 1 };

/// A moment in codes: values[code] * scales[block].
struct DeviceMoment {
  std::uint8_t* codes;
  float* scales;                     // one a block
  const float *values, *thresholds;  // by code, ascending; the latter by code but the first
};

/// One step of AdamW whose moments are codes, in place: of 8 bits in blocks of 256 elements, or (torchao) of 4 in
/// blocks of 128, two in a byte, the first in the high half. The last block may be shorter; it is even where two share
/// a byte.
///   g = gradient * factor;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   kDeviceBnbAdam:      p = decay * p - rate * m / (sqrt(v) / correction2 + eps)
///   kDeviceTorchaoAdam:  p = p - decay * p - rate * (m / correction1) / (sqrt(v) / correction2 + eps)
/// Then a block's scale is its largest magnitude (NaN if any is), at least least_scale, and x has the code that is the
/// number of thresholds up to x * (1 / scale), torchao: x / scale; 0 for NaN. Numbers are double as in DeviceAdam.
struct DeviceBlockAdam {
  float* p;
  const void* gradient;
  DeviceDtype gradient_dtype;
  DeviceMoment m, v;
  std::int64_t numel;
  std::int32_t codes_in_byte;  // 1 or 2
  float least_scale;
  const float* factor;  // of the gradient, one number of the device, or null: 1
  DeviceBlockAdamRule rule;
  double beta1, beta2, eps, decay, rate, correction1, correction2;
};

/// sums[b] = the sum of squares of the b-th part of x, in double; parts: blocks of ceil(numel / parts) elements but for
/// the last ones, which may be shorter or empty (0); added in the same order in every run.
struct DeviceSquares {
  const void* x;
  DeviceDtype dtype;
  std::int64_t numel;
  double* sums;
  std::int64_t parts;
};

/// out = scale * the sum over k of inputs[k], or added to out; inputs: [count, numel] contiguous, added in that order
/// in float32, rounded once.
struct DeviceRankSum {
  const void* inputs;
  void* out;
  DeviceDtype dtype, out_dtype;
  std::int64_t count, numel;
  float scale;
  bool accumulate;
};

constexpr std::int32_t kDeviceKernelsVersion = 4;

struct DeviceKernels {
  std::int32_t version;
  const char* (*error_text)(int code);
  /// Of the current device: 10 * major + minor of its compute capability; a code where these kernels do not run on it.
  int (*capability)(std::int32_t* value);
  /// Pages of the host's memory that the device's copy engines may reach until they are unregistered.
  int (*host_register)(void* memory, std::int64_t bytes);
  int (*host_unregister)(void* memory);
  int (*rotary)(void* stream, const DeviceRotary*);
  int (*gate)(void* stream, const DeviceGate*);
  int (*dropout)(void* stream, const DeviceDropout*);
  int (*cross_entropy)(void* stream, const DeviceCrossEntropy*);
  int (*four_bit)(void* stream, const DeviceFourBit*);
  int (*adam)(void* stream, const DeviceAdam*);
  int (*block_adam)(void* stream, const DeviceBlockAdam*);
  int (*squares)(void* stream, const DeviceSquares*);
  int (*rank_sum)(void* stream, const DeviceRankSum*);
};

/// The one symbol of libtessera_cuda.so.
using DeviceKernelsEntry = const DeviceKernels* (*)();
constexpr const char* kDeviceKernelsEntry = "tessera_device_kernels";

}  // extern "C"

}  // namespace tessera
