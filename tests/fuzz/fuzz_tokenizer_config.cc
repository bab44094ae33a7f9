// tokenizer_config.json, special_tokens_map.json and added_tokens.json, parted by zero bytes, beside the files of a
// small tokenizer, which the first byte chooses: an error, or a tokenizer that takes any text and can be saved.
#include <array>
#include <vector>

#include "fuzz/json_tree.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace {

using namespace tessera;

constexpr std::array<const char*, 3> kNames{"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

const fuzz::Folder& folder_with(std::size_t choice) {
  static const std::array<fuzz::Folder, 3> folders;
  static const bool filled = [] {
    folders[0].write(
        "tokenizer.json",
        R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<s>":3,"</s>":4,"<unk>":5},"merges":["a b"],)"
        R"("unk_token":"<unk>"},"pre_tokenizer":{"type":"ByteLevel"},"normalizer":{"type":"BertNormalizer"},)"
        R"("post_processor":{"type":"RobertaProcessing","sep":["</s>",4],"cls":["<s>",3]},)"
        R"("added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"</s>"}]})");
    folders[1].write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\nb\n##b\n");
    folders[2].write("vocab.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3,"<s>":4,"</s>":5,"<unk>":6,"<pad>":7})");
    folders[2].write("merges.txt", "#version: 0.2\na b\n");
    return true;
  }();
  return folders[filled ? choice % folders.size() : 0];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fuzz::Folder& folder = folder_with(data[0]);
  for (const char* name : kNames) {
    if (rest.empty())
      folder.remove(name);
    else
      folder.write(name, fuzz::next_part(rest, '\0'));
  }
  try {
    const auto tokenizer = text::open_tokenizer(folder.path());
    for (const std::string& one :
         {std::string("the abab<s> a\xC3\xA9 12<|end|>\r\n [CLS]"), tokenizer->chat_template()}) {
      const auto encoding = tokenizer->encode(one.substr(0, 100));
      tokenizer->decode(encoding.ids);
      tokenizer->decode(encoding.ids, /*skip_special_tokens=*/true);
      tokenizer->encode_pair("a b", one.substr(0, 100), {});
    }
  } catch (const DataError&) {
  }
  return 0;
}

namespace {

std::optional<std::string> changed_files(std::string_view input, fuzz::Random& random) {
  if (input.empty()) return std::nullopt;
  std::vector<std::string> files;
  for (std::string_view rest = input.substr(1); !rest.empty();) files.emplace_back(fuzz::next_part(rest, '\0'));
  if (files.empty() || (files.size() < kNames.size() && random.one_in(8))) files.emplace_back("{}");
  std::string& file = files[random.below(files.size())];
  const auto changed = fuzz::changed_json(file, random);
  file = changed ? *changed : fuzz::changed_bytes(std::move(file));
  std::string out(1, random.one_in(16) ? static_cast<char>(random.below(3)) : input[0]);
  for (const auto& one : files) out += one + '\0';
  return out;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return fuzz::mutate(data, size, max_size, seed, changed_files);
}
