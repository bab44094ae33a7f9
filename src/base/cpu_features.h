#pragma once
#include <string>
#include <vector>

namespace tessera {

/// What this processor multiplies bfloat16 matrices with, by the kernel's names: avx512_bf16, amx_bf16 (x86), bf16
/// (Arm). Empty: bfloat16 runs in software or by widening, and saves memory more than time.
std::vector<std::string> native_bfloat16();

}  // namespace tessera
