#pragma once
// The special tokens that transformers' tokenizer classes have when nobody says otherwise.
#include <string>

#include "text/tokenizer.h"

namespace tessera::text {

/// `family`: a class without "Tokenizer" and "Fast", "Bert" for example. Unknown ones have none.
SpecialTokens special_defaults(const std::string& family);

/// What is given in `with` wins.
void override_special(const SpecialTokens& with, SpecialTokens& special);

}  // namespace tessera::text
