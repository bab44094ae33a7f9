#pragma once
// GPTQ's (Frantar et al., 2022) and AWQ's (Lin et al., 2023) weights as files have them: codes of a few bits in words
// of 32, a scale and a zero point for each output and each group of inputs: w = scale * (code - zero). Only read here.
#include <cstdint>
#include <memory>

#include "quant/word_layout.h"
#include "tessera/tensor/codec.h"

namespace tessera::quant {

struct GroupedSettings {
  WordLayout layout = WordLayout::kGptq;
  int bits = 4;             // 2, 4 or 8; AWQ: 4
  std::int64_t groups = 1;  // of inputs, of equal sizes but the last
  std::int64_t group_size = 128;
  bool listed = false;         // g_idx [in] says each input's group (act-order); else they follow each other
  bool zeros_less_one = true;  // zero points are stored less one (the first GPTQ format)
  at::ScalarType scales = at::kHalf;
};

/// Fields: codes (`qweight`) int32; qzeros int32; scales [groups, out]; where listed g_idx int32 [in].
std::shared_ptr<const tensor::Codec> grouped_codec(const GroupedSettings& settings);

}  // namespace tessera::quant
