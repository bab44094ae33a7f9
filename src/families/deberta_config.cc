#include <algorithm>
#include <cctype>

#include "families/bert_config.h"
#include "families/decoder_parse.h"

namespace tessera::families {
namespace {

/// "c2p|p2c" in lower case: its parts.
std::vector<std::string> split(std::string text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '|')
      parts.emplace_back();
    else if (!std::isspace(static_cast<unsigned char>(c)))
      parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return parts;
}

bool names(const std::vector<std::string>& parts, const char* part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

/// Kinds of scores: a list, or a text.
std::vector<std::string> score_kinds(const ConfigReader& in) {
  const char* key = "pos_att_type";
  if (in.has(key) && in.at(key).is_string()) return split(in.get<std::string>(key, ""));
  return in.get<std::vector<std::string>>(key, {});
}

/// 0 and below mean `fallback`.
std::int64_t positive_or(const ConfigReader& in, const std::string& key, std::int64_t fallback) {
  return in.get<std::int64_t>(key, -1) > 0 ? in.positive(key, fallback) : fallback;
}

void read_distances(const ConfigReader& in, const BertConfig& c, DebertaConfig& d) {
  const auto kinds = score_kinds(in);
  const bool v2 = c.family == BertFamily::kDebertaV2;
  d.relative = in.get<bool>("relative_attention", false);
  d.content_to_position = names(kinds, "c2p");
  d.position_to_content = names(kinds, "p2c");
  d.scores = 1 + (v2 ? d.content_to_position + d.position_to_content : static_cast<std::int64_t>(kinds.size()));
  d.max_distance = positive_or(in, "max_relative_positions", c.max_positions);
  if (!v2) return;
  d.shares_projections = in.get<bool>("share_att_key", false);
  d.buckets = positive_or(in, "position_buckets", 0);
  d.norms_positions = names(split(in.get<std::string>("norm_rel_ebd", "none")), "layer_norm");
  if (d.buckets == 1 || (d.buckets > 0 && d.max_distance - 1 == d.buckets / 2))
    refuse(in, "position_buckets",
           "must be 2 or more, and their half not max_relative_positions - 1: the logarithm of a distance would be "
           "divided by 0");
}

void read_convolution(const ConfigReader& in, const BertConfig& c, DebertaConfig& d) {
  d.conv_kernel = positive_or(in, "conv_kernel_size", 0);
  d.conv_groups = in.positive("conv_groups", 1);
  d.conv_activation = parse_activation(in, "conv_act", "tanh");
  if (d.conv_kernel == 0) return;
  if (d.conv_kernel % 2 == 0) refuse(in, "conv_kernel_size", "must be odd: the rows keep their length");
  if (c.hidden_size % d.conv_groups != 0) refuse(in, "conv_groups", "must divide hidden_size");
}

}  // namespace

void read_deberta(const ConfigReader& in, BertConfig& c) {
  auto& d = c.deberta;
  const bool v2 = c.family == BertFamily::kDebertaV2;
  c.positions = in.get<bool>("position_biased_input", true) ? BertPositions::kAbsolute : BertPositions::kNone;
  read_distances(in, c, d);
  if (v2) read_convolution(in, c, d);
  d.pooler_activation = parse_activation(in, "pooler_hidden_act", "gelu");
  d.pooler_dropout = in.get<double>("pooler_dropout", 0.0);
  d.legacy_head = in.get<bool>("legacy", true);
  if (!d.legacy_head) c.tied = true;  // that head always multiplies with the word table
  if (c.type_vocab_size < 0) refuse(in, "type_vocab_size", "must not be negative");
  if (in.positive("pooler_hidden_size", c.hidden_size) != c.hidden_size)
    refuse(in, "pooler_hidden_size", "must be hidden_size, which the pooler is given");
  if (v2 && in.get<std::int64_t>("attention_head_size", c.hidden_size / c.num_heads) * c.num_heads != c.hidden_size)
    refuse(in, "attention_head_size", "must be hidden_size / num_attention_heads");
  if (!v2) require(in, "talking_head", false, "is not supported: heads do not mix their scores here");
  if (!d.legacy_head && c.head == BertHead::kMaskedLm && c.embedding_size != c.hidden_size)
    refuse(in, "embedding_size",
           "must be hidden_size where 'legacy' is false: the head multiplies with the word table");
}

}  // namespace tessera::families
