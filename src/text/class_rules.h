#pragma once
// What transformers' fast tokenizer classes change in the tokenizer.json that they load, from tokenizer_config.json.
#include "text/json_reader.h"
#include "text/pipeline.h"
#include "text/tokenizer_config.h"

namespace tessera::text {

/// bos, eos, unk, sep, pad, cls, mask, additional; those that are given, each once.
std::vector<std::string> special_list(const SpecialTokens& special);

void apply_class_rules(const JsonPlace& root, const TokenizerConfig& config, Pipeline& pipeline);

}  // namespace tessera::text
