#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/bpe.h"
#include "text/json_parts.h"
#include "text/word_models.h"

namespace tessera::text {
namespace {

// {"token": id, ...}. Gaps in the ids are common, but a few entries must not ask for gigabytes.
Vocabulary vocabulary(const JsonPlace& json) {
  simdjson::dom::object entries;
  if (json.element().get(entries)) json.fail("expected an object of token: id");
  Vocabulary out;
  const auto limit = static_cast<std::int64_t>(entries.size()) * 16 + (1 << 20);
  out.reserve(entries.size());
  for (const auto& [token, value] : entries) {
    std::int64_t id = 0;
    if (value.get(id) || id < 0 || id >= limit)
      json.fail(fmt::format("token \"{}\" must have an integer id from 0 to {}", token, limit - 1));
    out.add(token, static_cast<std::int32_t>(id));
  }
  return out;
}

// ["a b", ...], or [["a", "b"], ...] (since version 0.20 of the reference library).
std::vector<std::pair<std::string_view, std::string_view>> merges(const JsonPlace& json) {
  simdjson::dom::array list;
  if (json.element().get(list)) json.fail("expected an array");
  std::vector<std::pair<std::string_view, std::string_view>> out;
  out.reserve(list.size());
  for (const auto entry : list) {
    std::string_view text, left, right;
    simdjson::dom::array pair;
    if (!entry.get(text)) {
      const auto space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        json.fail(fmt::format("entry {} must be two tokens and one space, found \"{}\"", out.size(), text));
      out.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (!entry.get(pair) && pair.size() == 2 && !pair.at(0).get(left) && !pair.at(1).get(right)) {
      out.emplace_back(left, right);
    } else {
      json.fail(fmt::format("entry {} must be \"left right\" or [\"left\", \"right\"]", out.size()));
    }
  }
  return out;
}

std::unique_ptr<const Model> bpe(const JsonPlace& json) {
  if (json.has("dropout") && json.at("dropout").number() != 0)
    json.at("dropout").fail("dropout makes ids random and is not supported; set it to null");
  BpeOptions out;
  out.vocabulary = vocabulary(json.at("vocab"));
  out.merges = merges(json.at("merges"));
  out.unk_token = json.string_or("unk_token", "");
  out.continuing_subword_prefix = json.string_or("continuing_subword_prefix", "");
  out.end_of_word_suffix = json.string_or("end_of_word_suffix", "");
  out.fuse_unk = json.boolean_or("fuse_unk", false);
  out.byte_fallback = json.boolean_or("byte_fallback", false);
  out.ignore_merges = json.boolean_or("ignore_merges", false);
  return make_bpe(std::move(out), json.where());
}

// serde_json, upstream's reader, rounds twice: its digits are an integer, which it multiplies or divides by a power of
// ten. A last bit decides between segmentations of one score, "a aa" and "aa a".
double as_upstream_reads(double value) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::abs(value), std::chars_format::scientific).ptr;
  std::uint64_t digits = 0;
  int exponent = 0, count = 0;
  const char* at = text.data();
  for (; *at != 'e'; ++at) {
    if (*at == '.') continue;
    digits = digits * 10 + static_cast<std::uint64_t>(*at - '0');
    ++count;
  }
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
  exponent -= count - 1;
  if (std::abs(exponent) > std::numeric_limits<double>::max_exponent10) return value;  // far from any score
  double power = 0;
  const auto written = fmt::format("1e{}", std::abs(exponent));
  std::from_chars(written.data(), written.data() + written.size(), power);
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, value);
}

std::unique_ptr<const Model> unigram(const JsonPlace& json, Origin origin) {
  UnigramOptions out;
  const auto pieces_json = json.at("vocab");
  simdjson::dom::array pieces;
  if (pieces_json.element().get(pieces)) pieces_json.fail("expected an array of [token, score]");
  for (auto piece : pieces) {
    std::string_view token;
    double score = 0;
    simdjson::dom::array pair;
    if (piece.get(pair) || pair.size() != 2 || pair.at(0).get(token) || pair.at(1).get(score))
      pieces_json.fail(fmt::format("entry {} must be [token, score]", out.pieces.size()));
    out.pieces.emplace_back(token, origin == Origin::kFile ? as_upstream_reads(score) : score);
  }
  if (json.has("unk_id")) {
    const auto id = json.at("unk_id").integer();
    if (id < 0 || id >= static_cast<std::int64_t>(out.pieces.size())) json.at("unk_id").fail("no such piece");
    out.unk_id = static_cast<std::int32_t>(id);
  }
  out.byte_fallback = json.boolean_or("byte_fallback", false);
  return make_unigram(std::move(out), json.where());
}

std::unique_ptr<const Model> word_piece(const JsonPlace& json) {
  WordPieceOptions out;
  out.unk_token = json.string_or("unk_token", out.unk_token);
  out.continuing_subword_prefix = json.string_or("continuing_subword_prefix", out.continuing_subword_prefix);
  if (json.has("max_input_chars_per_word"))
    out.max_input_chars_per_word = json.at("max_input_chars_per_word").integer();
  return make_word_piece(vocabulary(json.at("vocab")), std::move(out), json.where());
}

// Files from before version 0.8 of the reference library have no type; what they hold tells it.
std::string guess_type(const JsonPlace& json) {
  if (json.has("merges")) return "BPE";
  if (json.has("continuing_subword_prefix")) return "WordPiece";
  simdjson::dom::array pairs;
  return json.has("vocab") && !json.at("vocab").element().get(pairs) ? "Unigram" : "WordLevel";
}

}  // namespace

std::unique_ptr<const Model> json_model(const JsonPlace& json, Origin origin) {
  const auto type = json.has("type") ? json.at("type").string() : guess_type(json);
  if (type == "BPE") return bpe(json);
  if (type == "Unigram") return unigram(json, origin);
  if (type == "WordPiece") return word_piece(json);
  if (type == "WordLevel")
    return make_word_level(vocabulary(json.at("vocab")), json.string_or("unk_token", "<unk>"), json.where());
  json.fail(fmt::format("unknown type \"{}\"; known are BPE, Unigram, WordPiece, WordLevel", type));
}

}  // namespace tessera::text
