#include "formats/weight_names.h"

#include <algorithm>
#include <iterator>

namespace tessera {

bool is_ignorable_weight(const std::string& name, bool has_head) {
  static const char* const kSuffixes[] = {"EncDecAttention.relative_attention_bias.weight",
                                          "rotary_emb.inv_freq",
                                          ".attn.bias",
                                          ".attn.masked_bias",
                                          ".attention.bias",
                                          ".attention.masked_bias",
                                          "embeddings.position_ids",
                                          "cls.predictions.decoder.weight",
                                          "cls.predictions.decoder.bias",
                                          "lm_head.decoder.weight",
                                          "lm_head.decoder.bias",
                                          "generator_lm_head.weight",
                                          "vocab_projector.weight"};
  if (name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight") return true;
  if ((name == "lm_head.weight" || name == "embed_out.weight") && !has_head) return true;
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes), [&](const char* s) { return name.ends_with(s); });
}

}  // namespace tessera
