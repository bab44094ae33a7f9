#include "text/json_parts.h"

namespace tessera::text {
namespace {

std::int32_t natural(const JsonPlace& json, const char* what) {
  const auto id = json.integer();
  if (id < 0 || id > 0x7FFFFFFE) json.fail(fmt::format("expected a {}", what));
  return static_cast<std::int32_t>(id);
}

// "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}
std::vector<std::int32_t> special_ids(const JsonPlace& json, const JsonPlace& part) {
  const auto name = part.at("id").string();
  const auto special = json.at("special_tokens").at(name);
  constexpr std::size_t kMaxIds = 1024;
  std::vector<std::int32_t> out;
  for (const auto& id : special.at("ids").items()) out.push_back(natural(id, "token id"));
  if (out.size() > kMaxIds) special.fail(fmt::format("{} ids; at most {} are taken", out.size(), kMaxIds));
  return out;
}

std::vector<TemplatePart> parts(const JsonPlace& json, const char* key) {
  constexpr std::size_t kMaxParts = 256;
  std::vector<TemplatePart> out;
  if (const auto count = json.at(key).items().size(); count > kMaxParts)
    json.at(key).fail(fmt::format("{} parts; at most {} are taken", count, kMaxParts));
  for (const auto& part : json.at(key).items()) {
    const bool special = part.has("SpecialToken");
    const auto piece = part.at(special ? "SpecialToken" : "Sequence"), id = piece.at("id");
    const auto type_id = natural(piece.at("type_id"), "token type id");
    if (special) {
      out.push_back({TemplatePart::Kind::kSpecial, special_ids(json, piece), type_id});
      continue;
    }
    if (id.string() != "A" && id.string() != "B") id.fail("expected \"A\" or \"B\"");
    out.push_back({id.string() == "A" ? TemplatePart::Kind::kFirst : TemplatePart::Kind::kSecond, {}, type_id});
  }
  return out;
}

// "sep": ["</s>", 2]
TemplatePart pair_of(const JsonPlace& json, const char* key) {
  const auto items = json.at(key).items();
  if (items.size() != 2) json.at(key).fail("expected [token, id]");
  return {TemplatePart::Kind::kSpecial, {natural(items[1], "token id")}};
}

}  // namespace

PostProcessor json_post_processor(const JsonPlace& json) {
  using Kind = TemplatePart::Kind;
  const auto type = json.at("type").string();
  const TemplatePart first{Kind::kFirst};
  PostProcessor out;
  if (type == "TemplateProcessing") {
    out.single = parts(json, "single");
    out.pair = parts(json, "pair");
    return out;
  }
  if (type == "RobertaProcessing" || type == "ByteLevel") {
    const bool add_prefix_space = json.boolean_or("add_prefix_space", true);
    if (json.boolean_or("trim_offsets", true)) out.trims.push_back({add_prefix_space});
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const auto sep = pair_of(json, "sep"), cls = pair_of(json, "cls");
    out.single = {cls, first, sep};
    if (type == "BertProcessing")
      out.pair = {cls, first, sep, {Kind::kSecond, {}, 1}, {Kind::kSpecial, sep.ids, 1}};
    else
      out.pair = {cls, first, sep, sep, {Kind::kSecond}, sep};
    return out;
  }
  const auto adds = [](const PostProcessor& one) { return one.added(false) > 0 || one.added(true) > 0; };
  if (type == "Sequence") {
    for (const auto& part : json.at("processors").items()) {
      const auto one = json_post_processor(part);
      if (const PostProcessor plain; one.single != plain.single || one.pair != plain.pair) {
        if (adds(out))
          part.fail("a processor behind one that adds tokens is not supported; put all tokens into the last");
        out.single = one.single;
        out.pair = one.pair;
      }
      out.trims.insert(out.trims.end(), one.trims.begin(), one.trims.end());
    }
    return out;
  }
  if (type == "ByteLevel") return out;
  json.fail(fmt::format(
      "unknown type \"{}\"; known are TemplateProcessing, BertProcessing, RobertaProcessing, Sequence, ByteLevel",
      type));
}

}  // namespace tessera::text
