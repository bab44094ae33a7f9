#include "data/cache_key.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "base/env.h"
#include "text/added_tokens.h"
#include "text/special_names.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kTextVersion = 2;  // raise when the same tokenizer or template gives something else

std::string default_cache_folder() {
  if (const auto cache = environment("XDG_CACHE_HOME")) return *cache + "/tessera/datasets";
  if (const auto home = environment("HOME")) return *home + "/.cache/tessera/datasets";
  return (std::filesystem::temp_directory_path() / "tessera-datasets").string();
}

}  // namespace

void add_tokenizer(Fingerprint& key, const text::Tokenizer& tokenizer) {
  key.add(kTextVersion);
  key.add(tokenizer.definition());
  key.add(tokenizer.vocab_size());
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) key.add(tokenizer.id_to_token(id));
  const auto& special = tokenizer.special_tokens();
  for (const auto& [name, token] : text::kSpecialNames) key.add(special.*token);
  for (const auto& token : special.additional) key.add(token);
  for (const auto& [name, token] : special.extra) key.add(name + "=" + token);
  for (const auto& [name, text] : tokenizer.chat_templates()) key.add(name + "=" + text);
  for (const auto& token : tokenizer.added_tokens()) {
    key.add(token.content);
    for (const bool flag : {token.single_word, token.lstrip, token.rstrip, token.is_normalized(), token.special})
      key.add(std::int64_t{flag});
    // Whether it is looked for at all.
    for (const auto piece : tokenizer.encode("a " + token.content + " b", false).ids) key.add(std::int64_t{piece});
  }
  // What the class and the configuration add shows in what becomes of text.
  for (const char* probe :
       {" Hello,  World! 12345\n\tcaf\xc3\xa9 e\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80's",
        "x=f(a[0])  // don't STOP\r\n", "\xef\xac\x81 \xc2\xa0 \xe2\x80\xa8 1/2 \xc2\xbd"})
    for (const bool add_special_tokens : {false, true}) {
      for (const auto id : tokenizer.encode(probe, add_special_tokens).ids) key.add(std::int64_t{id});
      key.add("|");
    }
}

std::string cache_file(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder.empty() ? default_cache_folder() : folder) / name).string();
}

int tokenizing_threads(int asked) {
  constexpr int kMost = 16;
  if (asked > 0) return asked;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMost);
}

}  // namespace tessera::data
