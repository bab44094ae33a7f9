#pragma once
// Code points as each stage of the tokenizers package (0.22.2) knows them, whatever Unicode version that is.
// tools/make_unicode_tables.py writes them.
#include <cstdint>
#include <span>

namespace tessera::text {

enum ClassFlag : std::uint8_t {
  kMark = 1,             // StripAccents: Unicode 9
  kNonspacingMark = 2,   // BertNormalizer's strip_accents: Unicode 8
  kOther = 4,            // BertNormalizer's clean_text: Unicode 8
  kPunctuation = 8,      // Punctuation, BertPreTokenizer: Unicode 8, and ASCII's
  kNumber = 16,          // Digits: Unicode 17
  kWord = 32,            // Whitespace and single_word: Unicode 16
  kNormalizes = 64,      // NFC to NFKD: Unicode 9 has a decomposition or a combining class
  kNewerThanPcre = 128,  // expressions (Unicode 16): unassigned or another category in Unicode 14
};
/// first << 8 | flags, up to the next run; sorted.
extern const std::span<const std::uint32_t> kClassRuns;

/// first << 8 | number of the script that UnicodeScripts takes it for (0: none), up to the next run; sorted.
extern const std::span<const std::uint32_t> kScriptRuns;

/// Code points of kNewerThanPcre that Unicode 16 has, and an old one that expressions treat alike, as long in UTF-8.
struct StandIn {
  char32_t first, last, old;
};
extern const std::span<const StandIn> kStandIns;

/// Every step-th code point's lower case is `distance` away: Unicode 17.
struct LowerRun {
  char32_t first, last;
  std::int32_t step, distance;
};
extern const std::span<const LowerRun> kLowerRuns;

}  // namespace tessera::text
