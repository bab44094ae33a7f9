#include "hub/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/env.h"
#include "base/file.h"
#include "base/open_file.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

bool is_on(const std::string& variable) {
  std::string value = environment(variable).value_or("");
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  return text;
}

std::string read_token(const std::string& home) {
  constexpr std::int64_t kLongest = 4096;
  auto given = environment("HF_TOKEN");
  if (!given) given = environment("HUGGING_FACE_HUB_TOKEN");
  std::string token = given.value_or("");
  const std::string file = expanded_path(environment("HF_TOKEN_PATH").value_or(home + "/token"));
  if (trimmed(token).empty() && is_there(file)) token = read_file(file, kLongest);
  token = trimmed(token);
  const bool fits = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  require_option(fits, "the token of HF_TOKEN (or of the file '" + file + "') holds spaces or characters beyond ASCII",
                 "HF_TOKEN");
  return token;
}

std::string read_endpoint() {
  std::string endpoint = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  require_option(endpoint.starts_with("https://") || endpoint.starts_with("http://"),
                 fmt::format("HF_ENDPOINT expects an address such as https://huggingface.co, found '{}'", endpoint),
                 "HF_ENDPOINT");
  return endpoint;
}

}  // namespace

Settings settings_from_environment() {
  const std::string home = huggingface_home();
  Settings out;
  auto cache = environment("HF_HUB_CACHE");
  if (!cache) cache = environment("HUGGINGFACE_HUB_CACHE");
  out.cache = cache ? expanded_path(*cache) : home + "/hub";
  out.endpoint = read_endpoint();
  out.token = read_token(home);
  out.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  return out;
}

}  // namespace tessera::hub
