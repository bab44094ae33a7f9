#include "text/special_defaults.h"
#include "text/special_names.h"

namespace tessera::text {

SpecialTokens special_defaults(const std::string& family) {
  const char* const kEnd = "<|endoftext|>";
  if (family == "Bert" || family == "DistilBert" || family == "Electra")
    return {.unk = "[UNK]", .sep = "[SEP]", .pad = "[PAD]", .cls = "[CLS]", .mask = "[MASK]"};
  if (family == "GPT2" || family == "GPTNeoX") return {.bos = kEnd, .eos = kEnd, .unk = kEnd};
  if (family == "Qwen2") return {.eos = kEnd, .unk = kEnd, .pad = kEnd};
  if (family == "Roberta" || family == "XLMRoberta")
    return {.bos = "<s>", .eos = "</s>", .unk = "<unk>", .sep = "</s>", .pad = "<pad>", .cls = "<s>", .mask = "<mask>"};
  if (family == "Llama" || family == "CodeLlama") return {.bos = "<s>", .eos = "</s>", .unk = "<unk>"};
  if (family == "Gemma") return {.bos = "<bos>", .eos = "<eos>", .unk = "<unk>", .pad = "<pad>"};
  if (family == "Bloom") return {.bos = "<s>", .eos = "</s>", .unk = "<unk>", .pad = "<pad>"};
  if (family == "T5") return {.eos = "</s>", .unk = "<unk>", .pad = "<pad>"};
  return {};
}

void override_special(const SpecialTokens& with, SpecialTokens& special) {
  for (const auto& [name, token] : kSpecialNames)
    if (!(with.*token).empty()) special.*token = with.*token;
  if (!with.additional.empty()) special.additional = with.additional;
}

}  // namespace tessera::text
