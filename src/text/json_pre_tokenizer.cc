#include "text/byte_level.h"
#include "text/json_parts.h"

namespace tessera::text {
namespace {

Delimiters behavior(const JsonPlace& json) {
  const auto name = json.string();
  if (name == "Removed") return Delimiters::kRemoved;
  if (name == "Isolated") return Delimiters::kIsolated;
  if (name == "Contiguous") return Delimiters::kContiguous;
  if (name == "MergedWithPrevious") return Delimiters::kMergedWithPrevious;
  if (name == "MergedWithNext") return Delimiters::kMergedWithNext;
  json.fail(fmt::format(
      "unknown behavior \"{}\"; known are Removed, Isolated, Contiguous, MergedWithPrevious, MergedWithNext", name));
}

MetaspaceOptions metaspace(const JsonPlace& json) {
  MetaspaceOptions out;
  if (json.has("replacement")) out.replacement = json.at("replacement").code_point();
  out.split = json.boolean_or("split", true);
  // Older files say add_prefix_space.
  const auto scheme = json.string_or("prepend_scheme", json.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always")
    out.prepend = PrependScheme::kAlways;
  else if (scheme == "first")
    out.prepend = PrependScheme::kFirst;
  else if (scheme == "never")
    out.prepend = PrependScheme::kNever;
  else
    json.fail(fmt::format("prepend_scheme must be always, first or never, found \"{}\"", scheme));
  return out;
}

}  // namespace

PreTokenizerPtr json_pre_tokenizer(const JsonPlace& json) {
  const auto type = json.at("type").string();
  if (type == "Sequence")
    return make_sequence(json_sequence<PreTokenizerPtr>(json, "pretokenizers", json_pre_tokenizer));
  if (type == "Metaspace") return make_metaspace(metaspace(json));
  if (type == "WhitespaceSplit") return make_whitespace_split();
  if (type == "Whitespace") return make_whitespace();
  if (type == "BertPreTokenizer") return make_bert();
  if (type == "Punctuation")
    return make_punctuation(json.has("behavior") ? behavior(json.at("behavior")) : Delimiters::kIsolated);
  if (type == "Digits") return make_digits(json.boolean_or("individual_digits", false));
  if (type == "ByteLevel")
    return make_byte_level({.add_prefix_space = json.boolean_or("add_prefix_space", true),
                            .use_regex = json.boolean_or("use_regex", true)});
  if (type == "CharDelimiterSplit") return make_char_delimiter(json.at("delimiter").code_point());
  if (type == "FixedLength") {
    const auto length = json.has("length") ? json.at("length").integer() : 5;
    if (length < 1) json.at("length").fail("expected at least 1");
    return make_fixed_length(static_cast<std::size_t>(length));
  }
  if (type == "UnicodeScripts") return make_unicode_scripts();
  if (type == "Split")
    return make_split(json_pattern(json.at("pattern")), behavior(json.at("behavior")), json.boolean_or("invert", false),
                      json.where());
  json.fail(
      fmt::format("unknown type \"{}\"; known are Sequence, Metaspace, WhitespaceSplit, Whitespace, BertPreTokenizer, "
                  "Punctuation, Digits, CharDelimiterSplit, FixedLength, UnicodeScripts, Split, ByteLevel",
                  type));
}

}  // namespace tessera::text
