#include "estimate/adapter_formulas.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

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

std::int64_t positive(const Args& args, const std::string& key, std::int64_t fallback) {
  const auto value = number(args, key, fallback);
  if (value <= 0) throw ConfigError("--peft_args: " + key + " must be positive", "peft_args");
  return value;
}

/// At the start; ranks fall later.
std::int64_t adalora(const Args& a, std::int64_t out, std::int64_t in) {
  return positive(a, "init_r", 12) * (out + in + 1);
}

/// LyCORIS' two factors of a side, the smaller first.
std::pair<std::int64_t, std::int64_t> factors(std::int64_t side) {
  std::pair<std::int64_t, std::int64_t> best = {1, side};
  for (std::int64_t m = 2; m * m <= side; ++m)
    if (side % m == 0) best = {m, side / m};
  return best;
}

std::int64_t loha(const Args& a, std::int64_t out, std::int64_t in) {
  return 2 * positive(a, "r", 8) * (out + in);
}

std::int64_t lokr(const Args& a, std::int64_t out, std::int64_t in) {
  const auto r = positive(a, "r", 8);
  const auto [out_1, out_2] = factors(out);
  const auto [in_1, in_2] = factors(in);
  const auto part = [r](std::int64_t rows, std::int64_t columns, bool may_split) {
    return may_split && 2 * r < std::max(rows, columns) ? r * (rows + columns) : rows * columns;
  };
  const bool both = is(a, "decompose_both", "true") || is(a, "decompose_both", "True");
  return part(out_1, in_1, both) + part(out_2, in_2, true);
}

std::int64_t vera(const Args& a, std::int64_t out, std::int64_t) {
  return out + positive(a, "r", 256);
}

std::int64_t vblora(const Args& a, std::int64_t out, std::int64_t in) {
  return positive(a, "r", 4) * positive(a, "num_vectors", 256) * ((out + in) / positive(a, "vector_length", 256));
}

std::int64_t randlora(const Args& a, std::int64_t out, std::int64_t in) {
  const auto r = positive(a, "r", 32), smaller = std::min(out, in), bases = (smaller + r - 1) / r;
  return bases * (r + smaller);
}

std::int64_t fourierft(const Args& a, std::int64_t, std::int64_t) {
  return positive(a, "n_frequency", 1000);
}

std::int64_t miss(const Args& a, std::int64_t out, std::int64_t) {
  const auto r = positive(a, "r", 64);
  return r * (is(a, "init_weights", "mini") ? positive(a, "mini_r", 1) : out);
}

std::int64_t hra(const Args& a, std::int64_t, std::int64_t in) {
  return positive(a, "r", 8) * in;
}

std::int64_t oft(const Args& a, std::int64_t, std::int64_t in) {
  const auto r = number(a, "r", 0);
  const auto size = r > 0 ? in / r : positive(a, "oft_block_size", 32);
  return in / size * (size * (size - 1) / 2);
}

std::int64_t boft(const Args& a, std::int64_t out, std::int64_t in) {
  const auto count = number(a, "boft_block_num", 0);
  const auto size = count > 0 ? in / count : positive(a, "boft_block_size", 4);
  return positive(a, "boft_n_butterfly_factor", 1) * in * size + out;
}

struct Formula {
  const char* type;
  std::int64_t (*numel)(const Args& args, std::int64_t out, std::int64_t in);
};
constexpr Formula kFormulas[] = {
    {"LOHA", loha},         {"LOKR", lokr},           {"VERA", vera},       {"VBLORA", vblora},
    {"RANDLORA", randlora}, {"FOURIERFT", fourierft}, {"MISS", miss},       {"HRA", hra},
    {"OFT", oft},           {"BOFT", boft},           {"ADALORA", adalora},
};

}  // namespace

std::map<std::string, std::string> parse_peft_args(const std::string& text) {
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
    if (equals == std::string::npos) throw ConfigError("--peft_args: '" + part + "' is no KEY=VALUE", "peft_args");
    out[part.substr(0, equals)] = part.substr(equals + 1);
  }
  return out;
}

std::vector<std::string> layer_methods() {
  std::vector<std::string> out = {"LORA", "IA3"};
  for (const auto& formula : kFormulas) out.emplace_back(formula.type);
  return out;
}

std::int64_t layer_adapter_numel(const std::string& peft_type, const Args& args, const ModelTensor& matrix,
                                 bool inputs) {
  const auto out = matrix.shape.at(0), in = matrix.shape.at(1);
  if (peft_type == "LORA") return positive(args, "r", 8) * (out + in);
  if (peft_type == "IA3") return inputs ? in : out;
  for (const auto& formula : kFormulas)
    if (peft_type == formula.type) return formula.numel(args, out, in);
  return 0;
}

std::vector<ModelTensor> at_places(const std::vector<ModelTensor>& tensors, const std::string& layer_replication) {
  const auto ranges = nlohmann::json::parse(layer_replication.empty() ? "null" : layer_replication, nullptr, false);
  if (ranges.is_null()) return tensors;
  const std::string stack = "model.layers.";
  std::vector<ModelTensor> out;
  std::map<std::int64_t, std::vector<ModelTensor>> layers;
  for (const auto& t : tensors) {
    if (t.name.starts_with(stack))
      layers[std::stoll(t.name.substr(stack.size()))].push_back(t);
    else
      out.push_back(t);
  }
  std::int64_t place = 0;
  const auto add = [&](std::int64_t layer) {
    for (auto t : layers.at(layer)) {
      t.name = stack + std::to_string(place) + t.name.substr(t.name.find('.', stack.size()));
      out.push_back(std::move(t));
    }
    ++place;
  };
  try {
    for (const auto& range : ranges)
      for (auto layer = range.at(0).get<std::int64_t>(); layer < range.at(1).get<std::int64_t>(); ++layer) add(layer);
  } catch (const std::exception&) {
    throw ConfigError("layer_replication is a list of ranges of the model's layers, [[0, 4], [2, 5]]; found '" +
                          layer_replication + "' for " + std::to_string(layers.size()) + " layers in 'model.layers'",
                      "layer_replication");
  }
  return out;
}

std::int64_t p_tuning_mlp_numel(const Args& args, std::int64_t dim) {
  const auto h = positive(args, "encoder_hidden_size", dim);
  return dim * h + h + h * h + h + h * dim + dim;
}

std::int64_t shared_adapter_numel(const std::string& peft_type, const Args& args) {
  if (peft_type != "VBLORA") return 0;
  return positive(args, "num_vectors", 256) * positive(args, "vector_length", 256);
}

}  // namespace tessera::estimate
