// Generations of the goldens: expect.json with "runs" (arguments of generate() and the sequences it gave).
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "models/generation.h"
#include "tasks/assemble.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/reference_json.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

using models::GenerationConfig;
using nlohmann::json;

void apply(const json& arguments, GenerationConfig& config) {
  static const std::set<std::string> kKnown = {"max_new_tokens",
                                               "max_length",
                                               "min_new_tokens",
                                               "min_length",
                                               "num_beams",
                                               "length_penalty",
                                               "repetition_penalty",
                                               "no_repeat_ngram_size",
                                               "early_stopping",
                                               "eos_token_id",
                                               "bad_words_ids",
                                               "suppress_tokens",
                                               "pad_token_id",
                                               "begin_suppress_tokens",
                                               "forced_bos_token_id",
                                               "forced_eos_token_id",
                                               "decoder_start_token_id",
                                               "do_sample",
                                               "num_return_sequences",
                                               "renormalize_logits",
                                               "exponential_decay_length_penalty"};
  for (const auto& [key, value] : arguments.items()) {
    if (!kKnown.contains(key) || (key == "do_sample" && value.get<bool>()))
      throw DataError("expect.json: generate() argument '" + key + "' is not known to tessera verify");
  }
  models::read_generation_json(arguments, "expect.json", config);
}

/// Shorter rows of the reference are padded at the end, as generate() pads them.
at::Tensor sequences_of(const json& run, std::int64_t pad) {
  const auto rows = run.at("sequences").get<std::vector<std::vector<std::int64_t>>>();
  std::size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  at::Tensor t = at::full({static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)}, pad, at::kLong);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      t[static_cast<std::int64_t>(r)][static_cast<std::int64_t>(i)] = rows[r][i];
  }
  return t;
}

}  // namespace

bool verify_generation(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const tasks::Assembled loaded = load_model(options, group);
  const json expect = read_reference_json(options.folder + "/expect.json");
  const auto io = io::open_safetensors(options.folder + "/io.safetensors");
  const at::Tensor input_ids = io::read_tensor(*io, "input_ids");
  const at::Tensor mask =
      io->find("attention_mask") ? io::read_tensor(*io, "attention_mask") : at::ones_like(input_ids);
  Comparison table;
  std::int64_t number = 0;
  for (const json& run : expect.at("runs")) {
    GenerationConfig generation = models::read_generation_config(loaded.config.folder, loaded.config);
    apply(run.at("kwargs"), generation);
    if (loaded.several) {
      const auto& only = options.adapters.size() == 1 ? options.adapters[0].name : std::string();
      loaded.several->use(loaded.several->number_of(run.value("adapter", only)));
    }
    const std::string scores_key = fmt::format("scores.{}", number);
    const bool scores = io->find(scores_key) != nullptr;
    const auto result = models::generate(*loaded.model, input_ids, mask, generation, scores);
    table.add(fmt::format("sequences run {}", number), result.sequences, sequences_of(run, generation.pad_token_id),
              0.0);
    if (run.contains("sequences_scores")) {
      table.add(fmt::format("sequences_scores run {}", number), result.sequences_scores,
                at::tensor(run["sequences_scores"].get<std::vector<double>>(), at::kFloat), 1e-5);
    }
    if (scores && result.scores.empty()) {
      table.fail(fmt::format("scores run {}", number), "were not computed");
    } else if (scores) {
      table.add_scores(fmt::format("scores run {}", number), at::stack(result.scores, 1),
                       io::read_tensor(*io, scores_key), 1e-5);
    }
    ++number;
  }
  table.merge(*group);
  out << fmt::format("generation ({}, {} rank{}, {})\n", loaded.config.model_type, group->size(),
                     group->size() == 1 ? "" : "s", options.sharded ? "sharded" : "unsharded");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
