#include "peft/methods/boft.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "nn/ops/block_product.h"
#include "peft/methods/block_dropout.h"
#include "peft/methods/cayley.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// Where row i of the permuted matrix comes from (PEFT's block_butterfly_perm): in each of `blocks` blocks the even
/// pieces of `piece` elements come first, then the odd ones. Where `like` lies.
at::Tensor butterfly(std::int64_t n, std::int64_t blocks, std::int64_t piece, const at::Tensor& like) {
  const auto size = n / blocks;
  const auto places = at::TensorOptions().dtype(at::kLong).device(like.device());
  const auto pieces = at::arange(n, places).view({blocks, size / piece, piece});
  const auto even = pieces.slice(1, 0, std::nullopt, 2), odd = pieces.slice(1, 1, std::nullopt, 2);
  return at::cat({even, odd}, 1).flatten();
}

}  // namespace

void Boft::bind(ConfigKeys& keys) {
  keys.integer("boft_block_size", boft_block_size);
  keys.integer("boft_block_num", boft_block_num);
  keys.integer("boft_n_butterfly_factor", boft_n_butterfly_factor);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.number("boft_dropout", boft_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void Boft::check() const {
  TransformMethod::check();
  require_positive("boft_n_butterfly_factor", boft_n_butterfly_factor);
  require_probability("boft_dropout", boft_dropout);
  if (boft_block_size < 0 || boft_block_num < 0 || (boft_block_size == 0) == (boft_block_num == 0)) {
    throw ConfigError("one of boft_block_size and boft_block_num is positive and the other 0 (found " +
                          std::to_string(boft_block_size) + " and " + std::to_string(boft_block_num) + ")",
                      "boft_block_size");
  }
}

std::vector<AddedTensor> Boft::added(const LayerSizes& layer) const {
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw ConfigError(key + ": " + why + " ('" + layer.name + "' has " + std::to_string(layer.in) + " inputs)", key);
  };
  const char* key = boft_block_size > 0 ? "boft_block_size" : "boft_block_num";
  const auto given = boft_block_size > 0 ? boft_block_size : boft_block_num;
  if (layer.in % given != 0) refuse(key, std::to_string(given) + " does not divide the inputs");
  const auto size = boft_block_size > 0 ? boft_block_size : layer.in / boft_block_num, count = layer.in / size;
  const auto groups = std::int64_t{1} << (boft_n_butterfly_factor - 1);
  if (boft_n_butterfly_factor > 1 && (count % groups != 0 || count % 2 != 0 || size % 2 != 0)) {
    refuse("boft_n_butterfly_factor",
           std::to_string(boft_n_butterfly_factor) + " needs blocks of even size, in a number that " +
               std::to_string(groups) + " divides; there are " + std::to_string(count) + " of " + std::to_string(size));
  }
  return {{"boft_R.default", {boft_n_butterfly_factor, count, size, size}, init_weights ? zeros() : normal(0.1)},
          {"boft_s.default", {layer.out, 1}, init_weights ? constant(1) : normal(0.1, 1)}};
}

// The rotation of factor i is P_i D_i P_i', and x meets the last factor first.
at::Tensor Boft::transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  const auto& r = t[0];
  const auto factors = r.size(0), count = r.size(1), size = r.size(2);
  const auto data = r.flatten(0, 1).to(at::kFloat);
  auto turns = cayley((data - data.transpose(1, 2)) * 0.5).to(r.scalar_type()).view(r.sizes());
  if (sizes.training && boft_dropout > 0) turns = with_dropped_factor(turns, boft_dropout);
  auto turned = x;
  for (std::int64_t i = factors - 1; i >= 0; --i) {
    const auto places = factors == 1 ? at::Tensor() : butterfly(sizes.in, count >> i, size / 2, x);
    if (places.defined()) turned = turned.index_select(1, places.argsort());
    turned = nn::block_product(turned, turns.select(0, i));
    if (places.defined()) turned = turned.index_select(1, places);
  }
  return turned;
}

}  // namespace tessera::peft
