#include "tasks/invocations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/grouped.h"
#include "peft/methods/activated_tokens.h"
#include "tessera/base/error.h"
#include "train/trainer.h"

namespace tessera::tasks {

void require_invocations(const models::Model& model, std::int64_t rows,
                         const std::function<TokenSequences(std::int64_t row)>& sequences,
                         const text::Tokenizer& tokenizer, comm::Communicator& group, std::vector<std::string>& notes) {
  const auto* activated = dynamic_cast<const peft::InvocationInput*>(model.input_adapter());
  if (!activated) return;
  const auto& invocation = activated->invocation();
  std::vector<double> counts(2);  // sequences; those with the invocation
  for (std::int64_t i = group.rank(); i < rows; i += group.size()) {
    for (const auto& ids : sequences(i)) {
      ++counts[0];
      counts[1] += std::search(ids.begin(), ids.end(), invocation.begin(), invocation.end()) != ids.end();
    }
  }
  counts = train::sum_over_ranks(group, counts);
  const auto all = static_cast<std::int64_t>(counts[0]), with = static_cast<std::int64_t>(counts[1]);
  if (with == all) return;
  const std::vector<std::int32_t> ids(invocation.begin(), invocation.end());
  const auto what =
      fmt::format("alora_invocation_tokens {} (\"{}\")", fmt::join(ids, ","), tokenizer.decode(ids, false));
  if (with == 0)
    throw DataError(fmt::format(
        "{} expected in the training rows, found in none of their {} sequences: the adapter, which acts from these "
        "tokens on, would learn nothing. Give the tokens that they have within the text of a row ('tessera tokenize' "
        "prints them; a text often has other tokens by itself than behind another), or raise --max_length where it "
        "cuts them off",
        what, grouped(all)));
  notes.push_back(fmt::format("warning: {} of {} training sequences lack {}: the adapter learns nothing of them",
                              grouped(all - with), grouped(all), what));
}

}  // namespace tessera::tasks
