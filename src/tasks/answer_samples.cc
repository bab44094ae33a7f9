#include "tasks/answer_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tasks/left_padding.h"

namespace tessera::tasks {

nlohmann::ordered_json answer_samples(models::Model& model, const text::Tokenizer& tokenizer,
                                      const std::vector<data::SftSample>& samples,
                                      const models::GenerationConfig& settings, std::int64_t batch_size,
                                      std::ostream& out) {
  auto answers = nlohmann::ordered_json::array();
  const auto step = static_cast<std::size_t>(std::max<std::int64_t>(1, batch_size));
  for (std::size_t begin = 0; begin < samples.size(); begin += step) {
    const auto end = std::min(samples.size(), begin + step);
    std::vector<std::vector<std::int32_t>> prompts;
    for (std::size_t i = begin; i < end; ++i) prompts.push_back(samples[i].prompt);
    const auto batch = left_padded(prompts);
    const auto result = models::generate(model, batch.ids, batch.mask, settings);
    for (std::size_t i = begin; i < end; ++i) {
      const auto generated = generated_text(result.sequences, static_cast<std::int64_t>(i - begin), batch.ids.size(1),
                                            settings, tokenizer, /*skip_special=*/true);
      const auto prompt = tokenizer.decode(samples[i].prompt, true);
      const auto completion = tokenizer.decode(samples[i].completion, true);
      out << fmt::format("--- prompt: {}\n  expected: {}\n generated: {}\n", prompt, completion, generated);
      answers.push_back({{"prompt", prompt}, {"completion", completion}, {"generated", generated}});
    }
  }
  out << std::flush;
  return answers;
}

}  // namespace tessera::tasks
