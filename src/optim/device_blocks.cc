#include "optim/device_blocks.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "optim/device_update.h"
#include "tensor/device_kernels.h"

namespace tessera::optim {
namespace {

/// Blocks of one size: whole ones, or the shorter one behind them.
struct Rows {
  std::int64_t first_block, count, begin, width;
  at::Tensor of(const at::Tensor& values) const { return values.narrow(0, begin, count * width).view({count, width}); }
  at::Tensor scales(const at::Tensor& all) const { return all.narrow(0, first_block, count).view({count, 1}); }
};

std::vector<Rows> rows_of(std::int64_t numel, std::int64_t block) {
  const auto whole = numel / block, rest = numel % block;
  std::vector<Rows> rows;
  if (whole > 0) rows.push_back({0, whole, 0, block});
  if (rest > 0) rows.push_back({whole, 1, whole * block, rest});
  return rows;
}

}  // namespace

DeviceBlocks::DeviceBlocks(std::shared_ptr<const StateCodec> codec, at::Device device) : codec_(std::move(codec)) {
  const auto moved = [&](std::span<const float> values) { return tensor_of(values).to(device); };
  for (const bool with_signs : {false, true})
    maps_[with_signs ? 1 : 0] = {moved(codec_->table(with_signs)), moved(code_thresholds(*codec_, with_signs))};
}

at::Tensor DeviceBlocks::decode(bool with_signs, const at::Tensor& codes, const at::Tensor& scales,
                                std::int64_t numel) const {
  auto each = codes;
  if (codec_->codes_in_byte() == 2) each = at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, 1).view(-1);
  auto values = at::index_select(map(with_signs).values, 0, each.narrow(0, 0, numel).to(at::kInt));
  for (const auto& rows : rows_of(numel, codec_->block())) rows.of(values).mul_(rows.scales(scales));
  return values;
}

void DeviceBlocks::encode(bool with_signs, const at::Tensor& values, const at::Tensor& codes,
                          const at::Tensor& scales) const {
  const auto scaled = at::empty_like(values);
  for (const auto& rows : rows_of(values.numel(), codec_->block())) {
    const auto x = rows.of(values), scale = rows.scales(scales);
    auto to = rows.of(scaled);
    scale.copy_(at::amax(at::abs(x), 1, /*keepdim=*/true).clamp_min_(codec_->least_scale()));
    codec_->multiplies_by_inverse() ? at::mul_out(to, x, scale.reciprocal()) : at::div_out(to, x, scale);
  }
  scaled.nan_to_num_(-2);  // a block of zeros has code 0
  const auto each = at::bucketize(scaled, map(with_signs).thresholds, /*out_int32=*/true, /*right=*/true).to(at::kByte);
  if (codec_->codes_in_byte() == 1) {
    codes.copy_(each);
    return;
  }
  const auto pairs = each.view({-1, 2});
  codes.copy_(pairs.select(1, 0).bitwise_left_shift(4).bitwise_or_(pairs.select(1, 1)));
}

bool DeviceBlocks::update(const Update& u, const at::Tensor& parameter, const at::Tensor& gradient,
                          const std::array<at::Tensor, kMaxStates>& codes,
                          const std::array<at::Tensor, kMaxStates>& scales) const {
  const bool bnb = u.rule == Rule::kBnbAdam, torchao = u.rule == Rule::kTorchaoAdam;
  const bool has_blocks_of_kernel = codec_->block() == (codec_->codes_in_byte() == 1 ? 256 : 128);
  if (!(bnb || torchao) || !has_blocks_of_kernel || parameter.scalar_type() != at::kFloat ||
      !tensor::has_device_kernels(gradient))
    return false;
  const auto moment = [&](std::size_t k) {
    const auto& [values, thresholds] = map(/*with_signs=*/k == 0);
    return DeviceMoment{.codes = tensor::written_there<std::uint8_t>(codes[k]),
                        .scales = tensor::written_there<float>(scales[k]),
                        .values = tensor::read_there<float>(values),
                        .thresholds = tensor::read_there<float>(thresholds)};
  };
  const auto factor = factor_there(u, gradient);
  tensor::launch(&DeviceKernels::block_adam, "block_adam", parameter,
                 DeviceBlockAdam{.p = tensor::written_there<float>(parameter),
                                 .gradient = tensor::read_there(gradient),
                                 .gradient_dtype = tensor::device_dtype(gradient.scalar_type()),
                                 .m = moment(0),
                                 .v = moment(1),
                                 .numel = parameter.numel(),
                                 .codes_in_byte = static_cast<std::int32_t>(codec_->codes_in_byte()),
                                 .least_scale = codec_->least_scale(),
                                 .factor = tensor::read_there<float>(factor),
                                 .rule = bnb ? kDeviceBnbAdam : kDeviceTorchaoAdam,
                                 .beta1 = u.beta1,
                                 .beta2 = u.beta2,
                                 .eps = u.eps,
                                 .decay = u.decay,
                                 .rate = bnb ? u.step_size : u.lr,
                                 .correction1 = u.correction1,
                                 .correction2 = u.correction2});
  return true;
}

}  // namespace tessera::optim
