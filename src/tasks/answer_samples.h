#pragma once
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "data/sft_samples.h"
#include "models/generation.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

/// Collective: continues the prompts, prints each beside what was expected, and returns them: [{"prompt", "completion",
/// "generated"}]. Every rank answers all of them, since they gather the model's units together.
nlohmann::ordered_json answer_samples(models::Model& model, const text::Tokenizer& tokenizer,
                                      const std::vector<data::SftSample>& samples,
                                      const models::GenerationConfig& settings, std::int64_t batch_size,
                                      std::ostream& out);

}  // namespace tessera::tasks
