#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/model.h"
#include "tessera/comm/communicator.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

using TokenSequences = std::vector<std::vector<std::int32_t>>;

/// Collective. An adapter with alora_invocation_tokens acts from these tokens on, and learns nothing of a sequence
/// without them. DataError where no training row has them; a note counts the sequences that lack them. Other adapters
/// ask for nothing. sequences: those of a row.
void require_invocations(const models::Model& model, std::int64_t rows,
                         const std::function<TokenSequences(std::int64_t row)>& sequences,
                         const text::Tokenizer& tokenizer, comm::Communicator& group, std::vector<std::string>& notes);

}  // namespace tessera::tasks
