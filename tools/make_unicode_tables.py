#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cc: what the tokenizers package (0.22.2) knows about every code point.

    python tools/make_unicode_tables.py src/text/unicode_tables.cc      # needs: pip install tokenizers==0.22.2 regex

Each stage of the package has tables of its own Unicode version (8 to 17), which no installed library offers. So each
stage is asked about all code points, and its answers are written down as runs.
"""
import sys
import unicodedata

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
FLAGS = ("mark", "nonspacing", "other", "punctuation", "number", "word", "normalizes", "newer")
PER_LINE = 126
# Marks that became alphabetic since that version.
ALPHABETIC_SINCE = {*range(0x363, 0x370), 0xC04, 0xF82, 0xF83, *range(0x1DD3, 0x1DE7), 0x11080, 0x11081}
OLD_UNICODE = "14.0.0"  # what every PCRE2 that the project meets knows; so does Python 3.11


def matches(expression):
    """All code points that the package's regular expressions match."""
    split = pre_tokenizers.Split(Regex(expression + "+"), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS))) for c in piece}


def parted(stage):
    """The code points that part two letters into three pieces."""
    return {c for c in CODE_POINTS if len(stage.pre_tokenize_str(f"a{chr(c)}a")) == 3}


def vanishing(stage):
    return {c for c in CODE_POINTS if stage.normalize_str(chr(c)) == ""}


def bert(**on):
    parts = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    return normalizers.BertNormalizer(**{**parts, **on})


def normalizes():
    """Those with a decomposition or a combining class: they change alone, or change places with another mark."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    out = {c for c in CODE_POINTS if nfkd.normalize_str(chr(c)) != chr(c)}
    for c in CODE_POINTS:
        around = [f"a\u0345{chr(c)}", f"a{chr(c)}\u0334"]  # the highest class, and the lowest
        if any(nfd.normalize_str(text) != text for text in around):
            out.add(c)
    return out | {0x334, 0x345}


def categories():
    out = {}
    for name in CATEGORIES:
        out.update(dict.fromkeys(matches(rf"\p{{{name}}}"), name))
    return out


def stand_ins(newer, category):
    """newer code point -> an old one of its category, script, alphabetic property and length in UTF-8."""
    alphabetic = matches(r"\p{Alphabetic}")
    scripts = {}

    def script(c):
        return next((s for s in scripts if regex.match(rf"\p{{sc={s}}}", chr(c))), "")

    for name in "Latin Greek Cyrillic Armenian Hebrew Arabic Devanagari Bengali Gurmukhi Gujarati Tamil Telugu Kannada " \
                "Malayalam Sinhala Thai Lao Tibetan Myanmar Georgian Hangul Ethiopic Khmer Mongolian Hiragana " \
                "Katakana Bopomofo Han Common Inherited".split():
        scripts[name] = True

    def exact(c):
        return category[c], script(c), c in alphabetic, len(chr(c).encode())

    old = {}
    for c in sorted((c for c in CODE_POINTS if c not in newer and c > 0x24F and category[c] not in ("Cn", "Co")),
                    key=lambda c: unicodedata.normalize("NFKC", chr(c)).lower() != chr(c)):  # no folding letters first
        old.setdefault((category[c], len(chr(c).encode()), c in alphabetic), []).append(c)
    out, known = {}, {}
    for c in sorted(newer):
        if category[c] == "Cn":
            continue
        key = exact(c)
        if key not in known:
            pool = old.get((key[0], key[3], key[2])) or old[(key[0], key[3], not key[2])]
            known[key] = next((o for o in pool if exact(o) == key), None) or next(
                (o for o in pool if script(o) == ""), pool[0])
        out[c] = known[key]
    return out


def lower_runs():
    """(first, last, step, distance): what lower case adds to every step-th code point. U+0130 is the one that becomes two."""
    lower, runs = normalizers.Lowercase(), []
    for c in CODE_POINTS:
        made = lower.normalize_str(chr(c))
        assert len(made) == 1 or c == 0x130
        if made == chr(c) or c == 0x130:
            continue
        distance = ord(made) - c
        last = runs[-1] if runs else None
        if last and last[3] == distance and c - last[1] == (last[2] or c - last[1]) and c - last[1] <= 2:
            last[1], last[2] = c, c - last[1]
        else:
            runs.append([c, c, 0, distance])
    return [(a, b, step or 1, d) for a, b, step, d in runs]


def script_runs():
    """(first, script) wherever UnicodeScripts sees another script than before; 0: none. Scripts are numbers only."""
    stage = pre_tokenizers.UnicodeScripts()
    skipped = ("a", "\u03b1")

    def same(a, b):
        return len(stage.pre_tokenize_str(a + b)) == 1

    known, runs, last = [], [], 0
    for c in CODE_POINTS:
        sign = chr(c)
        if all(same(s, sign) and same(sign, s) for s in skipped):
            number = 0
        elif last > 0 and same(known[last - 1], sign):
            number = last
        else:
            number = next((i for i, s in enumerate(known, 1) if same(s, sign)), 0)
            if number == 0:
                known.append(sign)
                number = len(known)
        if number != last:
            runs.append((c, number))
        last = number
    return runs


def lines(items):
    out, line = [], ""
    for item in items:
        if line and len(line) + len(item) + 2 > PER_LINE:
            out.append(line)
            line = ""
        line += (" " if line else "") + item + ","
    return "\n".join("    " + x for x in out + [line] if x)


def main():
    assert unicodedata.unidata_version == OLD_UNICODE, "run this with Python 3.11"
    category = categories()
    before = {c: unicodedata.category(chr(c)) for c in CODE_POINTS}
    newer = {c for c in CODE_POINTS if before[c] == "Cn" or before[c] != category[c]}
    newer |= ALPHABETIC_SINCE | {0x180E}  # the latter is white space in PCRE2
    newer -= {c for c in CODE_POINTS if c & 0xFFFE == 0xFFFE or 0xFDD0 <= c <= 0xFDEF}  # never assigned
    sets = {"mark": vanishing(normalizers.StripAccents()), "nonspacing": vanishing(bert(strip_accents=True)),
            "other": vanishing(bert(clean_text=True)), "punctuation": parted(pre_tokenizers.Punctuation()),
            "number": parted(pre_tokenizers.Digits(individual_digits=True)),
            "word": {c for c in CODE_POINTS if len(pre_tokenizers.Whitespace().pre_tokenize_str(f"a{chr(c)}a")) == 1},
            "normalizes": normalizes(), "newer": newer}
    runs, last = [], 0
    for c in range(0x110000):
        bits = sum((c in sets[name]) << i for i, name in enumerate(FLAGS))
        if bits != last:
            runs.append(f"0x{c << 8 | bits:X}")
        last = bits
    replaced, last = [], None
    for c, stand_in in sorted(stand_ins(newer, category).items()):
        if last and last[1] == c - 1 and last[2] == stand_in:
            last[1] = c
        else:
            last = [c, c, stand_in]
            replaced.append(last)
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(f"""// Made by tools/make_unicode_tables.py from tokenizers 0.22.2. Not to be edited.
#include "text/unicode_tables.h"

namespace tessera::text {{

// clang-format off
static constexpr std::uint32_t kClasses[] = {{
{lines(runs)}
}};
static constexpr StandIn kReplaced[] = {{
{lines("{0x%X, 0x%X, 0x%X}" % tuple(r) for r in replaced)}
}};
static constexpr LowerRun kLower[] = {{
{lines("{0x%X, 0x%X, %d, %d}" % r for r in lower_runs())}
}};
static constexpr std::uint32_t kScripts[] = {{
{lines(f"0x{c << 8 | script:X}" for c, script in script_runs())}
}};
// clang-format on

const std::span<const std::uint32_t> kClassRuns = kClasses, kScriptRuns = kScripts;
const std::span<const StandIn> kStandIns = kReplaced;
const std::span<const LowerRun> kLowerRuns = kLower;

}}  // namespace tessera::text
""")


if __name__ == "__main__":
    main()
