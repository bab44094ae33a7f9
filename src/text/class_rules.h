#pragma once
// What transformers' fast tokenizer classes change in the tokenizer.json that they load, from tokenizer_config.json.
#include "text/json_reader.h"
#include "text/pipeline.h"
#include "text/tokenizer_config.h"

namespace tessera::text {

/// DataError where the class asks for a token that the folder does not name.
void apply_class_rules(const JsonPlace& root, const TokenizerConfig& config, Pipeline& pipeline);

}  // namespace tessera::text
