// Logits processors of the goldens: fixed scores, and what each of transformers' processors made of them. A tensor's
// name says the settings: "top_k_5", "temperature_0.9_top_k_12_top_p_0.85".
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "models/logits_processors.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/reference_json.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

using models::GenerationConfig;

// A number after `prefix` at the start of `rest`, which loses both.
std::optional<double> take(std::string& rest, const std::string& prefix) {
  if (!rest.starts_with(prefix)) return std::nullopt;
  const char* begin = rest.c_str() + prefix.size();
  char* end = nullptr;
  const double value = std::strtod(begin, &end);
  rest.erase(0, static_cast<std::size_t>(end - rest.c_str()));
  if (rest.starts_with("_")) rest.erase(0, 1);
  return value;
}

bool take_filter(std::string& rest, GenerationConfig& c) {
  if (const auto v = take(rest, "temperature_")) return c.temperature = *v, true;
  if (const auto v = take(rest, "top_k_")) return c.top_k = static_cast<std::int64_t>(*v), true;
  if (const auto v = take(rest, "top_p_")) return c.top_p = *v, true;
  if (const auto v = take(rest, "min_p_")) return c.min_p = *v, true;
  if (const auto v = take(rest, "typical_")) return c.typical_p = *v, true;
  if (const auto v = take(rest, "epsilon_")) return c.epsilon_cutoff = *v, true;
  if (const auto v = take(rest, "eta_")) return c.eta_cutoff = *v, true;
  if (const auto v = take(rest, "keep")) return c.min_tokens_to_keep = static_cast<std::int64_t>(*v), true;
  return false;
}

bool take_processor(std::string& rest, const nlohmann::json& expect, GenerationConfig& c) {
  const auto whole = [](double v) { return static_cast<std::int64_t>(v); };
  if (const auto v = take(rest, "repetition_")) return c.repetition_penalty = *v, true;
  if (const auto v = take(rest, "no_repeat_")) return c.no_repeat_ngram_size = whole(*v), true;
  if (const auto v = take(rest, "min_length_")) return c.min_length = whole(*v), true;
  if (const auto v = take(rest, "eos")) return c.eos_token_ids = {whole(*v)}, true;
  if (const auto v = take(rest, "forced_bos_")) return c.forced_bos_token_id = whole(*v), true;
  if (take(rest, "at_len_")) return true;
  if (rest == "bad_words") {
    c.bad_words_ids = expect.at("bad_words").get<std::vector<std::vector<std::int64_t>>>();
  } else if (rest == "suppress") {
    c.suppress_tokens = {1, 2};
  } else if (rest == "exp_decay") {
    c.exponential_decay_length_penalty = {3, 1.2};
  } else {
    return false;
  }
  rest.clear();
  return true;
}

GenerationConfig settings_of(const std::string& name, const nlohmann::json& expect) {
  GenerationConfig config;
  config.top_k = 0;
  config.eos_token_ids = {3};
  std::string rest = name;
  while (!rest.empty()) {
    if (!take_filter(rest, config) && !take_processor(rest, expect, config))
      throw DataError("io.safetensors: the processor '" + name + "' is not known to tessera verify");
  }
  return config;
}

}  // namespace

bool verify_processors(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const auto expect = read_reference_json(options.folder + "/expect.json");
  const auto io = io::open_safetensors(options.folder + "/io.safetensors");
  const at::Tensor ids = io::read_tensor(*io, "input_ids"), given = io::read_tensor(*io, "scores");
  Comparison table;
  for (const auto& tensor : io->tensors()) {
    if (tensor.name == "input_ids" || tensor.name == "scores") continue;
    const auto config = settings_of(tensor.name, expect);
    const at::Tensor scores = given.clone();
    models::process_scores(scores, {ids, 1, ids.size(1) + 10}, config);
    models::warp_scores(scores, config);
    table.add_scores("processor " + tensor.name, scores, io::read_tensor(*io, tensor.name), 1e-6);
  }
  table.merge(*group);
  out << "logits processors\n";
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
