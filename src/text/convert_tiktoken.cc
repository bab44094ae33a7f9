#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "base/file.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/byte_level.h"
#include "text/convert.h"
#include "text/json_forms.h"

namespace tessera::text {
namespace {

using nlohmann::json;
using Ranks = std::map<std::string, std::int64_t, std::less<>>;  // by the token's bytes

/// "IQ== 0"; false: the line is none.
bool read_rank(std::string_view line, std::string& token, std::int64_t& rank) {
  token.clear();
  const auto space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || !decode_base64(line.substr(0, space), token)) return false;
  const auto number = line.substr(space + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  return error == std::errc() && end == number.data() + number.size() && rank >= 0 && !token.empty();
}

std::string_view take_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  auto line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Ranks read_ranks(const std::string& file) {
  const auto bytes = read_file(file);
  Ranks ranks;
  std::string token;
  std::int64_t rank = 0;
  int number = 0;
  for (std::string_view rest = bytes; !rest.empty();) {
    ++number;
    const auto line = take_line(rest);
    if (line.empty()) continue;
    if (!read_rank(line, token, rank))
      throw DataError(fmt::format("{}:{}: expected a token in base64, a space and its rank", file, number), file);
    ranks[token] = rank;
  }
  return ranks;
}

std::string in_signs(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(byte_to_sign(static_cast<unsigned char>(c)), out);
  return out;
}

/// A token's pairs of parts that are tokens, by the token's rank, then by theirs.
json merges_of(const Ranks& ranks) {
  constexpr std::size_t kLongest = 4096;  // longer ones (none is known) are found whole alone
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::string>> found;
  for (const auto& [token, rank] : ranks)
    for (std::size_t at = 1; at < token.size() && token.size() <= kLongest; ++at) {
      const auto left = ranks.find(std::string_view(token).substr(0, at));
      const auto right = left == ranks.end() ? left : ranks.find(std::string_view(token).substr(at));
      if (right != ranks.end())
        found.emplace_back(rank, left->second, right->second, in_signs(left->first) + " " + in_signs(right->first));
    }
  std::sort(found.begin(), found.end());
  json out = json::array();
  for (auto& merge : found) out.push_back(std::move(std::get<3>(merge)));
  return out;
}

}  // namespace

bool is_tiktoken(const std::string& file) {
  const auto bytes = read_file(file);
  std::string_view rest = bytes;
  std::string token;
  std::int64_t rank = 0;
  return read_rank(take_line(rest), token, rank);
}

std::string tiktoken_to_json(const std::string& file, const TokenizerConfig& config, SpecialTokens& special) {
  const auto family = config.family();
  if (!family.empty() && family != "PreTrained" && family != "Llama") throw_not_converted(config, file);
  special = config.special;
  const auto ranks = read_ranks(file);
  json vocabulary = json::object(), added = json::array();
  std::int64_t next = 0;
  for (const auto& [token, rank] : ranks) {
    vocabulary[in_signs(token)] = rank;
    next = std::max(next, rank + 1);
  }
  for (const auto& token : special.additional) {
    const auto known = vocabulary.find(token);
    added.push_back(json_added_token(token, known != vocabulary.end() ? known->get<std::int64_t>() : next++, true));
  }
  json root = {{"version", "1.0"}, {"added_tokens", std::move(added)}};
  root["pre_tokenizer"] = json_split_then_byte_level(kLlama3Pattern);
  root["post_processor"] = json_byte_level(true, false, true);
  root["decoder"] = json_byte_level(true, true, true);
  root["model"] = json_plain_bpe();
  root["model"]["ignore_merges"] = true;
  root["model"]["merges"] = merges_of(ranks);
  root["model"]["vocab"] = std::move(vocabulary);
  return json_text(root);
}

}  // namespace tessera::text
