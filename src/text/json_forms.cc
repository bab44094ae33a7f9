#include "text/json_forms.h"

#include <algorithm>
#include <tuple>

#include "text/metaspace.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace tessera::text {

using nlohmann::json;

const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

json part(const char* id, int type_id) {
  return {{"Sequence", {{"id", id}, {"type_id", type_id}}}};
}
json special(const IdAndToken& token, int type_id) {
  return {{"SpecialToken", {{"id", token.second}, {"type_id", type_id}}}};
}
void define(const IdAndToken& token, json& root) {
  root["special_tokens"][token.second] = {
      {"id", token.second}, {"ids", json::array({token.first})}, {"tokens", json::array({token.second})}};
}
json string_pattern(std::string_view text) {
  return {{"String", text}};
}

struct ScoredMerge {
  std::string_view left, right;
  double score;
  std::int32_t left_id, right_id;
  std::int64_t left_length, right_length;  // code points
  std::size_t order;                       // as found: by token, then by the ids of its parts
};

}  // namespace

json json_added_token(const std::string& content, std::int64_t id, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json json_template(const IdAndToken& before, const IdAndToken& after, int second_type_id) {
  json root = {{"type", "TemplateProcessing"}, {"special_tokens", json::object()}};
  for (const auto* token : {&before, &after})
    if (token->first >= 0) define(*token, root);
  const auto wrap = [&](const char* id, int type_id, json& to) {
    if (before.first >= 0) to.push_back(special(before, type_id));
    to.push_back(part(id, type_id));
    if (after.first >= 0) to.push_back(special(after, type_id));
  };
  wrap("A", 0, root["single"]);
  wrap("A", 0, root["pair"]);
  wrap("B", second_type_id, root["pair"]);
  return root;
}

json json_cls_sep_template(const IdAndToken& cls, const IdAndToken& sep) {
  json root = {{"type", "TemplateProcessing"}};
  define(cls, root);
  define(sep, root);
  root["single"] = {special(cls, 0), part("A", 0), special(sep, 0)};
  root["pair"] = {special(cls, 0), part("A", 0), special(sep, 0), part("B", 1), special(sep, 1)};
  return root;
}

json json_byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

json json_split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json json_split_then_byte_level(const std::string& pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers", json::array({json_split(pattern), json_byte_level(false, false, false)})}};
}

json json_plain_bpe() {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false}};
}

json merges_from_scores(const std::vector<std::pair<std::string, double>>& pieces) {
  Vocabulary vocabulary;
  vocabulary.reserve(pieces.size());
  for (std::size_t id = 0; id < pieces.size(); ++id) vocabulary.add(pieces[id].first, static_cast<std::int32_t>(id));
  std::vector<ScoredMerge> merges;
  for (const auto& [piece, score] : pieces) {
    const std::string_view text = piece;
    const auto first = merges.size();
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (is_continuation(text[at])) continue;
      const auto left = text.substr(0, at), right = text.substr(at);
      const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right);
      if (left_id >= 0 && right_id >= 0)
        merges.push_back({left, right, score, left_id, right_id, count_points(left), count_points(right), 0});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(), [](const auto& a, const auto& b) {
      return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
    });
    for (auto i = first; i < merges.size(); ++i) merges[i].order = i;
  }
  std::sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::tuple(b.left_length, b.right_length, a.order) < std::tuple(a.left_length, a.right_length, b.order);
  });
  json out = json::array();
  for (const auto& m : merges) out.push_back({m.left, m.right});
  return out;
}

void set_llama_stages(const LlamaForm& form, json& root) {
  const json replace = {{"type", "Replace"}, {"pattern", string_pattern(" ")}, {"content", kMetaspace}};
  if (form.legacy) {
    json parts = json::array();
    if (form.add_prefix_space) parts.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
    parts.push_back(replace);
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
  } else {
    root["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", kMetaspace},
                             {"prepend_scheme", form.add_prefix_space ? "first" : "never"},
                             {"split", false}};
  }
  json decoders = json::array({{{"type", "Replace"}, {"pattern", string_pattern(kMetaspace)}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
  if (form.add_prefix_space) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

}  // namespace tessera::text
