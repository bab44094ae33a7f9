#include "estimate/adapter_formulas.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/factor_order.h"
#include "base/kronecker_sides.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

using Args = std::map<std::string, std::string>;

std::int64_t number(const Args& args, const std::string& key, std::int64_t fallback) {
  const auto found = args.find(key);
  if (found == args.end()) return fallback;
  try {
    return std::stoll(found->second);
  } catch (const std::exception&) {
    throw ConfigError("--peft_args: " + key + " is '" + found->second + "', not a whole number", "peft_args");
  }
}

bool is(const Args& args, const std::string& key, const std::string& value) {
  const auto found = args.find(key);
  return found != args.end() && found->second == value;
}

bool is_true(const Args& args, const std::string& key) {
  return is(args, key, "true") || is(args, key, "True");
}

bool is_false(const Args& args, const std::string& key) {
  return is(args, key, "false") || is(args, key, "False");
}

std::int64_t positive(const Args& args, const std::string& key, std::int64_t fallback) {
  const auto value = number(args, key, fallback);
  if (value <= 0) throw ConfigError("--peft_args: " + key + " must be positive", "peft_args");
  return value;
}

bool has_dropout(const Args& args, const std::string& key) {
  const auto found = args.find(key);
  return found != args.end() && std::atof(found->second.c_str()) > 0;
}

using Layer = AdaptedLayer;
/// Counted in elements of the computation.
using Elements = AdapterBytes;

/// What a step holds is counted for so many tokens; `wide` elements of the computation are a float32.
struct Step {
  std::int64_t tokens, wide;
};

std::int64_t lora_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 8) * (layer.out + layer.in);
}

/// The tokens' product with A. DoRA: also the outputs before they are scaled. PiSSA and OLoRA compute with their first
/// factors beside the trained ones. Dropout's part of the input's gradient is made apart.
Elements lora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 8), dora = is_true(a, "use_dora") ? layer.out : 0, scaled = s.tokens * dora;
  const auto found = a.find("init_lora_weights");
  const bool beside_start = found != a.end() && (found->second.starts_with("pissa") || found->second == "olora");
  const auto dropped = has_dropout(a, "lora_dropout") ? s.tokens * layer.in : 0;
  const auto factors = r * (layer.in + layer.out);
  if (!beside_start) {
    return {.kept = s.tokens * r + scaled + (1 + s.wide) * dora,  // norms and their scale
            .working = s.tokens * r + std::max(scaled, dropped)};
  }
  return {.kept = 2 * (s.tokens * r + factors), .working = 2 * s.tokens * r + factors + dropped};
}

std::int64_t ia3_numel(const Args&, const Layer& layer) {
  return layer.scales_inputs ? layer.in : layer.out;
}

/// While the scale's gradient is made there are two products of the outputs' size, but not yet the input's gradient.
std::int64_t scaled_outputs(const Layer& layer, const Step& s) {
  return std::max<std::int64_t>(0, s.tokens * (2 * layer.out - layer.in));
}

Elements ia3_held(const Args&, const Layer& layer, const Step& s) {
  if (layer.scales_inputs) return {.working = 3 * s.tokens * layer.in};
  return {.kept = s.tokens * layer.out, .working = scaled_outputs(layer, s)};
}

/// At the start; ranks fall later.
std::int64_t adalora_numel(const Args& a, const Layer& layer) {
  return positive(a, "init_r", 12) * (layer.out + layer.in + 1);
}

Elements adalora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "init_r", 12);
  return {.kept = r * (s.tokens + layer.in), .working = r * std::max(s.tokens, layer.in - s.tokens)};
}

std::int64_t loha_numel(const Args& a, const Layer& layer) {
  return 2 * positive(a, "r", 8) * (layer.out + layer.in);
}

/// By factors of r^2 columns: the tokens' product with the first, both, their gradients, and those of what one is a
/// product of. By the matrix: it, the two that it is a product of, and gradients of them all.
Elements loha_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 8), rank = r * r, sides = layer.in + layer.out;
  if (!factors_are_less_work({s.tokens, layer.in, layer.out}, rank))
    return {.working = 7 * layer.in * layer.out - loha_numel(a, layer)};
  const auto product = std::max((2 * rank - r) * layer.in, 2 * rank * layer.out - r * (layer.out + 2 * layer.in));
  return {.kept = s.tokens * rank, .working = s.tokens * rank + 2 * rank * sides + product};
}

std::int64_t lokr_numel(const Args& a, const Layer& layer) {
  const auto r = positive(a, "r", 8), factor = number(a, "decompose_factor", -1);
  const auto [out_1, out_2] = kronecker_sides(layer.out, factor);
  const auto [in_1, in_2] = kronecker_sides(layer.in, factor);
  const auto part = [r](std::int64_t rows, std::int64_t columns, bool may_split) {
    return may_split && 2 * r < std::max(rows, columns) ? r * (rows + columns) : rows * columns;
  };
  return part(out_1, in_1, is_true(a, "decompose_both")) + part(out_2, in_2, true);
}

/// The tokens times one factor, and then the other.
Elements lokr_held(const Args& a, const Layer& layer, const Step& s) {
  const auto factor = number(a, "decompose_factor", -1);
  const auto [in_1, in_2] = kronecker_sides(layer.in, factor);
  const auto [out_1, out_2] = kronecker_sides(layer.out, factor);
  const auto factors = in_1 * out_1 + in_2 * out_2 - lokr_numel(a, layer);  // made of smaller ones
  return {.working = 2 * s.tokens * std::max(layer.out + in_1 * out_2, layer.in) + factors};
}

std::int64_t vera_numel(const Args& a, const Layer& layer) {
  return layer.out + positive(a, "r", 256);
}

/// The tokens' product with A, which layers share where no dropout makes it their own; then what it adds to the input's
/// gradient, or B scaled and its gradient.
Elements vera_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 256), input = s.tokens * layer.in;
  if (has_dropout(a, "vera_dropout"))
    return {.kept = s.tokens * r, .working = r * (s.tokens + 2 * layer.out) + std::max(input, r * layer.out)};
  return {.kept_by_input = s.tokens * r, .working = std::max(input, 2 * r * (s.tokens + layer.out) - input)};
}

std::int64_t vblora_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 4) * positive(a, "num_vectors", 256) *
         ((layer.out + layer.in) / positive(a, "vector_length", 256));
}

/// The tokens' product with A, the factors and the vectors that they are mixed of, and gradients.
Elements vblora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 4), topk = positive(a, "topk", 2);
  return {.kept = s.tokens * r,
          .working = r * (s.tokens + (2 + topk) * (layer.in + layer.out) + topk * std::max(layer.in, layer.out))};
}

std::int64_t randlora_numel(const Args& a, const Layer& layer) {
  const auto r = positive(a, "r", 32), smaller = std::min(layer.out, layer.in), bases = (smaller + r - 1) / r;
  return bases * (r + smaller);
}

/// The factor that trains, its gradient and the tokens' product with the first factor, which is kept where the second
/// one trains; or that factor and the matrix, unscaled and scaled, with its gradient.
Elements randlora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 32), smaller = std::min(layer.in, layer.out), rank = (smaller + r - 1) / r * r;
  if (!factors_are_less_work({s.tokens, layer.in, layer.out}, rank))
    return {.working = 3 * layer.in * layer.out + rank * smaller - randlora_numel(a, layer)};
  const auto product = s.tokens * rank;
  return {.kept = layer.in <= layer.out ? 0 : product, .working = product + (2 * rank + r) * smaller};
}

std::int64_t fourierft_numel(const Args& a, const Layer&) {
  return positive(a, "n_frequency", 1000);
}

/// Of methods that compute on panels of 64 tokens (nn/ops/panel_product.h), on one thread: so many panels of inputs and
/// of outputs. Those of one size are used for both: then there are `square`.
std::int64_t panels(const Layer& layer, std::int64_t each, std::int64_t square) {
  return 64 * (layer.in == layer.out ? square * layer.in : each * (layer.in + layer.out));
}

/// The tokens and their outputs, both transformed, and what is between passes of a transform.
Elements fourierft_held(const Args&, const Layer& layer, const Step& s) {
  return {.working = s.wide * panels(layer, 3, 4)};
}

std::int64_t miss_numel(const Args& a, const Layer& layer) {
  const auto r = positive(a, "r", 64);
  return r * (is(a, "init_weights", "mini") ? positive(a, "mini_r", 1) : layer.out);
}

/// The input's blocks added up, and what that gives the input's gradient. Bat: the matrix, what it is a sum of, and
/// gradients.
Elements miss_held(const Args& a, const Layer& layer, const Step& s) {
  if (is(a, "init_weights", "bat")) return {.working = 5 * layer.in * layer.out};
  const auto r = positive(a, "r", 64), padded = (layer.in + r - 1) / r * r;
  const auto repeated = is(a, "init_weights", "mini") ? r * layer.out : 0;
  return {.kept = s.tokens * r + repeated, .working = s.tokens * (layer.in + padded - r) - repeated};
}

std::int64_t hra_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 8) * layer.in;
}

/// Of methods that turn the input: it, turned, and its gradient.
std::int64_t turned_input(const Layer& layer, const Step& s) {
  return 2 * s.tokens * layer.in;
}

Elements hra_held(const Args& a, const Layer& layer, const Step& s) {
  return {.working = turned_input(layer, s) + positive(a, "r", 8) * (2 * s.tokens + 4 * layer.in)};
}

std::int64_t oft_block(const Args& a, const Layer& layer) {
  const auto r = number(a, "r", 0);
  return r > 0 ? layer.in / r : positive(a, "oft_block_size", 32);
}

std::int64_t oft_numel(const Args& a, const Layer& layer) {
  const auto size = oft_block(a, layer);
  return layer.in / size * (size * (size - 1) / 2);
}

/// Powers of the blocks make a rotation.
Elements oft_held(const Args& a, const Layer& layer, const Step& s) {
  return {.working = turned_input(layer, s) + 7 * s.wide * layer.in * oft_block(a, layer) - oft_numel(a, layer)};
}

std::int64_t boft_block(const Args& a, const Layer& layer) {
  const auto count = number(a, "boft_block_num", 0);
  return count > 0 ? layer.in / count : positive(a, "boft_block_size", 4);
}

std::int64_t boft_numel(const Args& a, const Layer& layer) {
  return positive(a, "boft_n_butterfly_factor", 1) * layer.in * boft_block(a, layer) + layer.out;
}

/// The outputs before they are scaled, which are gone when the input is turned; several factors permute it between
/// them.
Elements boft_held(const Args& a, const Layer& layer, const Step& s) {
  const auto factors = positive(a, "boft_n_butterfly_factor", 1), outputs = s.tokens * layer.out;
  const auto inputs = factors == 1 ? turned_input(layer, s) : (factors + 3) * s.tokens * layer.in;
  const auto turned = inputs - outputs + (7 + factors) * s.wide * layer.in * boft_block(a, layer) / 2;
  return {.kept = outputs, .working = std::max(scaled_outputs(layer, s), turned)};
}

std::int64_t gralora_numel(const Args& a, const Layer& layer) {
  return (positive(a, "r", 32) + number(a, "hybrid_r", 0)) * (layer.in + layer.out);
}

/// The tokens' product with a factor that is as wide as all blocks' ranks. Both factors, their gradients, and one of
/// these as it is laid out.
Elements gralora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto k = positive(a, "gralora_k", 2), ranks = k * positive(a, "r", 32), whole = number(a, "hybrid_r", 0);
  const auto sides = layer.in + layer.out, product = s.tokens * (ranks + whole);
  const auto laid_out = std::max(layer.in, layer.out - layer.in / k);
  return {.kept = product, .working = product + ranks * (2 * sides + laid_out) + whole * sides};
}

std::int64_t delora_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 8) * (layer.in + layer.out) + 1;
}

/// The tokens' product with A. A scaled, its gradient, and those by the norms.
Elements delora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 8), norms = std::max(layer.in + layer.out, 2 * layer.out);
  return {.kept = s.tokens * r, .working = r * (s.tokens + 2 * layer.in + norms)};
}

std::int64_t c3a_numel(const Args& a, const Layer& layer) {
  return layer.in * layer.out / positive(a, "block_size", 256);
}

/// The tokens and their outputs, and spectra of both and of a block; the spectra of the numbers and their gradients.
Elements c3a_held(const Args& a, const Layer& layer, const Step& s) {
  const auto block = 64 * positive(a, "block_size", 256);
  return {.working = s.wide * (panels(layer, 2, 3) + block + 4 * c3a_numel(a, layer))};
}

std::int64_t road_numel(const Args& a, const Layer& layer) {
  return layer.out * (is(a, "variant", "road_4") ? 4 : is(a, "variant", "road_2") ? 2 : 1);
}

/// The outputs before they are turned; their product with the gradient, and cosines, sines and sums for each output.
Elements road_held(const Args&, const Layer& layer, const Step& s) {
  const auto product = s.tokens * (layer.out - layer.in) + 8 * layer.out;
  return {.kept = s.tokens * layer.out, .working = std::max<std::int64_t>(0, product)};
}

std::int64_t shira_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 32) * (layer.in + layer.out);
}

/// The tokens and their outputs.
Elements shira_held(const Args&, const Layer& layer, const Step& s) {
  return {.working = s.wide * panels(layer, 1, 2)};
}

/// In the mean of all layers with proportional_parameters.
std::int64_t waveft_numel(const Args& a, const Layer&) {
  return positive(a, "n_frequency", 2592);
}

/// The same, and the coefficients of both.
Elements waveft_held(const Args& a, const Layer& layer, const Step& s) {
  const bool has_wavelets = !is_false(a, "use_idwt");
  return {.working = s.wide * (has_wavelets ? panels(layer, 2, 3) : panels(layer, 1, 2))};
}

std::int64_t hira_numel(const Args& a, const Layer& layer) {
  return positive(a, "r", 32) * (layer.in + layer.out);
}

/// The matrix, its gradient, and that times the weight, or the tokens that dropout leaves.
Elements hira_held(const Args& a, const Layer& layer, const Step& s) {
  const auto matrix = layer.in * layer.out;
  const auto dropped = has_dropout(a, "hira_dropout") ? s.tokens * layer.in - hira_numel(a, layer) : 0;
  return {.working = 2 * matrix + std::max(matrix, dropped)};
}

std::int64_t beft_numel(const Args&, const Layer& layer) {
  return layer.out;
}

Elements beft_held(const Args&, const Layer&, const Step&) {
  return {};
}

std::int64_t pvera_numel(const Args& a, const Layer& layer) {
  return layer.out + 2 * positive(a, "r", 256);
}

/// As VeRA, whose product with A has means and variances, and what is drawn of them; then what draws it again, what it
/// adds to the input's gradient, or B scaled and its gradient.
Elements pvera_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 256), input = s.tokens * layer.in, product = s.tokens * r;
  const bool drops = has_dropout(a, "pvera_dropout");
  const auto of_input = drops ? 2 * input - 3 * product : input - product;
  const auto of_b = product + 2 * r * (layer.out - 1) - input;
  return {.kept = drops ? 3 * product : product,
          .kept_by_input = drops ? 0 : 2 * product,
          .working = std::max({7 * product, of_input, of_b})};
}

/// All are of one vector.
std::int64_t unilora_numel(const Args&, const Layer&) {
  return 0;
}

/// The tokens' product with A; both factors, gradients of them and of the vector, and it scaled.
Elements unilora_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 4), length = positive(a, "theta_d_length", 256);
  return {.kept = s.tokens * r, .working = s.tokens * r + r * (2 * layer.in + 3 * layer.out) + 3 * length};
}

std::int64_t psoft_numel(const Args& a, const Layer&) {
  const auto r = positive(a, "r", 32);
  const auto scales = (is_false(a, "psoft_mag_a") ? 0 : 1) + (is_false(a, "psoft_mag_b") ? 0 : 1);
  return (is_false(a, "psoft_orth") ? r * r : r * (r - 1) / 2) + scales * r;
}

/// The tokens' product with A; B turned, its gradient, and small matrices.
Elements psoft_held(const Args& a, const Layer& layer, const Step& s) {
  const auto r = positive(a, "r", 32), product = s.tokens * r;
  return {.kept = product, .working = product + 2 * r * layer.out + 7 * r * r - psoft_numel(a, layer)};
}

struct Method {
  const char* type;
  std::int64_t (*numel)(const Args& args, const Layer& layer);
  Elements (*held)(const Args& args, const Layer& layer, const Step& step);
  bool reads_input = true;  // in backward; else a product with it is kept, or the outputs
};
constexpr Method kMethods[] = {
    {"LORA", lora_numel, lora_held},
    {"IA3", ia3_numel, ia3_held, false},
    {"LOHA", loha_numel, loha_held},
    {"LOKR", lokr_numel, lokr_held},
    {"VERA", vera_numel, vera_held, false},
    {"VBLORA", vblora_numel, vblora_held},
    {"RANDLORA", randlora_numel, randlora_held},
    {"FOURIERFT", fourierft_numel, fourierft_held},
    {"MISS", miss_numel, miss_held, false},
    {"HRA", hra_numel, hra_held},
    {"OFT", oft_numel, oft_held},
    {"BOFT", boft_numel, boft_held},
    {"ROAD", road_numel, road_held, false},
    {"SHIRA", shira_numel, shira_held},
    {"WAVEFT", waveft_numel, waveft_held},
    {"ADALORA", adalora_numel, adalora_held},
    {"DELORA", delora_numel, delora_held},
    {"GRALORA", gralora_numel, gralora_held},
    {"C3A", c3a_numel, c3a_held},
    {"HIRA", hira_numel, hira_held},
    {"BEFT", beft_numel, beft_held, false},
    {"PVERA", pvera_numel, pvera_held, false},
    {"UNILORA", unilora_numel, unilora_held},
    {"PSOFT", psoft_numel, psoft_held},
};

const Method* method_of(const std::string& peft_type) {
  const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                   [&](const Method& method) { return peft_type == method.type; });
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace

std::map<std::string, std::string> parse_peft_args(const std::string& text, const std::string& flag) {
  std::map<std::string, std::string> out;
  const auto end_of = [&](std::size_t begin) {  // the comma behind brackets
    int depth = 0;
    for (; begin < text.size() && (depth > 0 || text[begin] != ','); ++begin)
      depth += text[begin] == '[' ? 1 : text[begin] == ']' ? -1 : 0;
    return begin;
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = end_of(begin);
    auto part = text.substr(begin, end - begin);
    part.erase(std::remove(part.begin(), part.end(), ' '), part.end());
    begin = end + 1;
    const auto equals = part.find('=');
    if (equals == std::string::npos) throw ConfigError("--" + flag + ": '" + part + "' is no KEY=VALUE", flag);
    out[part.substr(0, equals)] = part.substr(equals + 1);
  }
  return out;
}

std::vector<std::string> layer_methods() {
  std::vector<std::string> out;
  for (const auto& method : kMethods) out.emplace_back(method.type);
  return out;
}

std::int64_t layer_adapter_numel(const std::string& peft_type, const Args& args, const AdaptedLayer& layer) {
  const auto* method = method_of(peft_type);
  return method ? method->numel(args, layer) : 0;
}

AdapterBytes layer_adapter_bytes(const std::string& peft_type, const Args& args, const AdaptedLayer& layer,
                                 const LayerBatch& batch) {
  const auto* method = method_of(peft_type);
  if (!method) return {};
  const auto bytes = batch.element_bytes;
  const auto held = method->held(args, layer, {batch.tokens, 4 / bytes});
  const bool reads_input = method->reads_input || layer.scales_inputs || is(args, "init_weights", "bat");
  return {bytes * held.kept, bytes * held.kept_by_input, bytes * held.working, reads_input};
}

std::int64_t tokens_in_front(const std::string& peft_type, std::int64_t num_virtual_tokens) {
  return peft_type == "PROMPT_TUNING" || peft_type == "P_TUNING" ? num_virtual_tokens : 0;
}

std::int64_t token_count(const Args& args) {
  const auto found = args.find("token_indices");
  const auto ids = nlohmann::json::parse(found == args.end() ? "" : found->second, nullptr, false);
  if (!ids.is_array() || ids.empty())
    throw ConfigError("TRAINABLE_TOKENS: name the tokens that train with --peft_args token_indices=[5,7,20]",
                      "peft_args");
  return static_cast<std::int64_t>(ids.size());
}

std::int64_t p_tuning_mlp_numel(const Args& args, std::int64_t dim) {
  const auto h = positive(args, "encoder_hidden_size", dim);
  return dim * h + h + h * h + h + h * dim + dim;
}

SharedNumel shared_adapter_numel(const std::string& peft_type, const Args& args,
                                 const std::vector<AdaptedLayer>& layers) {
  if (peft_type == "VBLORA")
    return {.trainable = positive(args, "num_vectors", 256) * positive(args, "vector_length", 256)};
  if (peft_type == "UNILORA") return {.trainable = positive(args, "theta_d_length", 256)};
  std::int64_t in = 0, out = 0;  // the largest, of which each layer uses a part
  std::int64_t sides = 0;
  for (const auto& layer : layers) {
    sides += layer.in + layer.out;
    in = std::max(in, layer.in);
    out = std::max(out, layer.out);
  }
  if (peft_type == "VERA") return {.frozen = positive(args, "r", 256) * (in + out)};
  if (peft_type == "PVERA") return {.frozen = positive(args, "r", 256) * (2 * in + out)};
  if (peft_type == "PSOFT") return {.frozen = positive(args, "r", 32) * sides};
  if (peft_type == "RANDLORA") {
    const auto r = positive(args, "r", 32), smaller = std::min(in, out), bases = (smaller + r - 1) / r;
    return {.frozen = r * (smaller + std::max(in, out) * bases)};
  }
  return {};
}

}  // namespace tessera::estimate
