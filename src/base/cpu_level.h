#pragma once
// Which instruction sets this process computes with. Everything of ours that has versions for several processors asks
// here; libtorch, oneDNN and MKL choose for themselves (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA,
// MKL_ENABLE_INSTRUCTIONS).
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Each has what those before it have. kPlain: x86-64 without extensions, or any other architecture (whose compiler's
/// baseline is used; NEON on aarch64). kAvx2: with FMA (x86-64-v3). kAvx512: F, BW, CD, DQ, VL (x86-64-v4).
/// kAvx512Bf16: dot products of bfloat16. kAmx: tiles of bfloat16.
enum class CpuLevel { kPlain, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// plain, avx2, avx512, avx512_bf16, amx.
std::string_view name(CpuLevel level);
/// The highest that this processor has.
CpuLevel native_cpu_level();
/// `wanted`, a level's name; without one the fastest up to `native`: Intel's processors multiply pairs of bfloat16 at
/// half the rate of float32, so without tiles kAvx512. ConfigError where it is not a name or too high.
CpuLevel choose_cpu_level(const std::optional<std::string>& wanted, CpuLevel native, bool is_intel = false);
/// What the environment variable TESSERA_CPU_LEVEL chooses, once for the process.
CpuLevel cpu_level();

/// What this processor multiplies bfloat16 matrices with, by the kernel's names: avx512_bf16, amx_bf16 (x86), bf16
/// (Arm). Empty: bfloat16 runs in software or by widening, and saves memory more than time.
std::vector<std::string> native_bfloat16();

/// Whether this process multiplies bfloat16 matrices by such an instruction.
bool multiplies_bfloat16();

/// MKL adds in an order that depends on where in memory a matrix lies, so that ranks of one host and of two differ in
/// the last bits; here it is told not to (its large products take as long). Before the first product of the process;
/// only on Intel's processors, and not where MKL_CBWR is set.
void make_products_reproducible();

/// Whether a library that libtorch carries multiplies float32 matrices at full rate. On processors with AVX2 that are
/// not Intel's MKL reaches two thirds of it, a third with 32 rows, and libtorch has no oneDNN for them.
bool multiplies_float32();

}  // namespace tessera
