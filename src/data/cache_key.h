#pragma once
// What files of tokenised rows are named after, and where they lie.
#include <string>

#include "data/fingerprint.h"
#include "text/tokenizer.h"

namespace tessera::data {

/// All that makes ids of text.
void add_tokenizer(Fingerprint& key, const text::Tokenizer& tokenizer);
/// `name` in the folder; in tessera/datasets below the user's cache folder where that is empty.
std::string cache_file(const std::string& folder, const std::string& name);
/// asked 0: as many as the machine has, at most 16.
int tokenizing_threads(int asked);

}  // namespace tessera::data
