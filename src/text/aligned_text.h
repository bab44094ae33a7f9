#pragma once
// Text on its way to the model: every code point knows which code points of the input it stands for.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

struct AlignedChar {
  char32_t c = 0;
  std::int32_t begin = 0, end = 0;  // of the input, in code points
};
using AlignedText = std::vector<AlignedChar>;

/// The input itself; malformed UTF-8 becomes U+FFFD.
AlignedText align(std::string_view utf8);
std::string to_utf8(const AlignedChar* begin, const AlignedChar* end);

/// One code point of a rewritten text. `change` says what it stands for (as the Hugging Face normalizers count): 0 the
/// next old code point; 1 none, it was inserted after the one before; -n the next one, after which n more old ones
/// vanish.
struct Rewrite {
  char32_t c = 0;
  std::int32_t change = 0;
};

/// Appends `rewrites` to `out`. They consume the old code points [from, to), of which the first `skip` were removed
/// before. `origin`: input position that insertions before the first old code point get.
void rewrite(const AlignedChar* from, const AlignedChar* to, std::int32_t skip, const std::vector<Rewrite>& rewrites,
             std::int32_t origin, AlignedText& out);

/// Adds to `rewrites` those that put `now` in the place of `old_count` code points.
void replace_run(std::size_t old_count, const std::u32string& now, std::vector<Rewrite>& rewrites);

/// A run of the text that is still to be split or tokenized, or an added token that was found in it.
struct Piece {
  std::size_t begin = 0, end = 0;  // of Pieces::text
  std::int32_t token = -1;         // id of the added token
};

struct Pieces {
  AlignedText text;
  std::vector<Piece> list;
};

}  // namespace tessera::text
