#include <array>
#include <cstring>

#include "tessera/base/error.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// A unit of the darts-clone double-array trie (https://github.com/s-yata/darts-clone).
struct Unit {
  std::uint32_t bits;
  bool has_leaf() const { return (bits >> 8) & 1; }
  std::uint32_t value() const { return bits & 0x7FFFFFFFu; }
  std::uint32_t label() const { return bits & 0x800000FFu; }
  std::uint32_t offset() const { return (bits >> 10) << ((bits & (1u << 9)) >> 6); }
};

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::string_view blob, const std::string& where) {
    std::uint32_t trie_bytes = 0;
    if (blob.size() >= 4) std::memcpy(&trie_bytes, blob.data(), 4);
    if (blob.size() < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob.size() - 4)
      throw DataError(where + ": the precompiled character map is damaged (its trie does not fit into it)");
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), blob.data() + 4, trie_bytes);
    const auto texts = blob.substr(4 + trie_bytes);
    replacements_.assign(texts);
    replacements_ += '\0';  // ends a last replacement that lacks its terminator
    for (char32_t c = 0; c < 128; ++c) {
      const char byte = static_cast<char>(c);
      ascii_changes_[c] = find({&byte, 1}) != nullptr;
    }
  }

  void normalize(AlignedText& text, std::int32_t origin) const override {
    std::vector<Rewrite> rewrites;
    rewrites.reserve(text.size() + 8);
    bool modified = false;
    std::string bytes;
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = grapheme_end(text, begin);
      if (end == begin + 1 && text[begin].c < 128 && !ascii_changes_[text[begin].c]) {
        rewrites.push_back({text[begin++].c, 0});
        continue;
      }
      bytes = to_utf8(text.data() + begin, text.data() + end);
      // Upstream tries short clusters as a whole and takes the shortest entry that begins them, then single code
      // points.
      const char* whole = bytes.size() < 6 ? find(bytes) : nullptr;
      check_growth(text, rewrites.size());
      if (whole) {
        modified = true;
        replace_run(end - begin, to_utf32(whole), rewrites);
      } else {
        for (auto i = begin; i < end; ++i) {
          bytes.clear();
          append_utf8(text[i].c, bytes);
          const char* one = find(bytes);
          if (one) {
            modified = true;
            replace_run(1, to_utf32(one), rewrites);
          } else {
            rewrites.push_back({text[i].c, 0});
          }
        }
      }
      begin = end;
    }
    if (!modified) return;
    AlignedText out;
    out.reserve(rewrites.size());
    rewrite(text.data(), text.data() + text.size(), 0, rewrites, origin, out);
    text.swap(out);
  }

 private:
  static std::size_t grapheme_end(const AlignedText& text, std::size_t begin) {
    std::int32_t state = 0;
    auto end = begin + 1;
    while (end < text.size() && !is_grapheme_break(text[end - 1].c, text[end].c, state)) ++end;
    return end;
  }

  // The replacement of the shortest entry that is a prefix of `key`, or null.
  const char* find(std::string_view key) const {
    std::size_t node = units_[0].offset();
    for (unsigned char byte : key) {
      if (byte == 0) return nullptr;
      node ^= byte;
      if (node >= units_.size()) return nullptr;
      const auto unit = units_[node];
      if (unit.label() != byte) return nullptr;
      node ^= unit.offset();
      if (unit.has_leaf()) {
        if (node >= units_.size() || units_[node].value() >= replacements_.size()) return nullptr;
        return replacements_.data() + units_[node].value();
      }
    }
    return nullptr;
  }

  std::vector<Unit> units_;
  std::string replacements_;  // zero-terminated texts
  std::array<bool, 128> ascii_changes_{};
};

}  // namespace

NormalizerPtr make_precompiled(std::string_view charsmap, const std::string& where) {
  return std::make_unique<Precompiled>(charsmap, where);
}

}  // namespace tessera::text
