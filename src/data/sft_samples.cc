#include "data/sft_samples.h"

#include "data/mixture.h"
#include "data/sft_tokenize.h"
#include "tessera/base/error.h"

namespace tessera::data {

std::vector<SftSample> first_samples(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer,
                                     std::int64_t count) {
  const auto splits = find_splits(options);
  if (splits.size() < 2 || splits[1].files.empty())
    throw ConfigError("--eval_generate needs a second split to take prompts from " + options.remedy(), "eval_generate");
  SftDataOptions plain = options;
  plain.completion_only_loss.reset();
  plain.assistant_only_loss = false;
  std::vector<SftSample> samples;
  std::unique_ptr<const SftTokenizer> row_tokenizer;
  for (std::size_t file = 0; file < splits[1].files.size(); ++file) {
    const auto source = open_rows(splits[1], file, options.dataset_text_field);
    for (SourceRow row; static_cast<std::int64_t>(samples.size()) < count && source->next(row);) {
      if (!row_tokenizer) {
        const auto kind = kind_of_row(*parse_row(row), options.dataset_text_field, where(row));
        row_tokenizer = std::make_unique<const SftTokenizer>(plain, tokenizer, kind);
      }
      auto sample = row_tokenizer->split(row);
      auto& prompt = sample.prompt;
      const auto most = static_cast<std::size_t>(options.max_length);
      if (most > 0 && prompt.size() > most)
        prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(most));
      if (!prompt.empty()) samples.push_back(std::move(sample));
    }
  }
  return samples;
}

}  // namespace tessera::data
