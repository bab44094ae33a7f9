// What bitsandbytes and transformers store for a matrix L.weight of LLM.int8(): L.weight (codes, int8 [out, in]), L.SCB
// (float32 [out]) and L.weight_format (uint8, 0: in rows).
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "quant/int8_codec.h"
#include "quant/stored_matrix.h"

namespace tessera::quant {
namespace {

void check_format(const io::TensorSource& source, const std::string& layer) {
  const auto* info = source.find(layer + ".weight_format");
  if (!info) return;
  if (info->numel() != 1) refuse_tensor(*info, fmt::format("has {} values; the order of codes is one", info->numel()));
  const auto format = io::read_tensor(source, info->name).item<std::int64_t>();
  if (format != 0)
    refuse_tensor(*info, fmt::format("codes in order {}; only rows (0) are read: save the model with a version of "
                                     "bitsandbytes from 0.43 on",
                                     format));
}

}  // namespace

void find_int8(const io::TensorSource& source, double threshold, StoredMatrices& found) {
  const std::string end = ".weight";
  for (const auto& info : source.tensors()) {
    if (info.name.ends_with(".SCB") && !source.find(info.name.substr(0, info.name.size() - 4) + end))
      refuse_tensor(info, "are the scales of int8 codes that are not there");
    if (!info.name.ends_with(end) || info.shape.size() != 2 || info.numel() == 0) continue;
    const auto layer = info.name.substr(0, info.name.size() - end.size());
    const auto* scales = source.find(layer + ".SCB");
    if (info.dtype != at::kChar) {
      if (scales)
        refuse_tensor(info, fmt::format("is {}; codes beside '{}' are int8: were they cast?", c10::toString(info.dtype),
                                        scales->name));
      continue;
    }
    if (!scales) refuse_tensor(info, "holds int8 codes and lacks their scales '" + layer + ".SCB'");
    check_format(source, layer);
    StoredMatrix matrix{int8_codec(info.shape[1], threshold), info.shape[0], info.shape[1]};
    matrix.fields = {info.name, scales->name};
    found.by_name.emplace(info.name, std::move(matrix));
    found.hidden.insert(layer + ".weight_format");
  }
}

}  // namespace tessera::quant
