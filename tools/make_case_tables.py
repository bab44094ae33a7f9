#!/usr/bin/env python3
"""Writes src/chat/jinja/case_tables.h: what CPython's str methods do with code points beyond what their categories say.

    python3 tools/make_case_tables.py          # CPython 3.11 (Unicode 14)
"""
import os
import sys
from unicodedata import category

POINTS = [c for c in range(sys.maxunicode + 1) if category(chr(c)) not in ("Cn", "Cs", "Co")]
LETTERS = ("Lu", "Ll", "Lt", "Lm", "Lo")


def ignorable(c):
    """Of a sigma's neighbours, those that it looks past."""
    return ("A" + c + "\u03a3").lower()[-1] == ("A\u03a3" + c).lower()[1] == "\u03c2"


# What CPython says; what src/chat/jinja/unicode.cc says by the category.
PROPERTIES = {
    "kLower": (str.islower, lambda c, k: k == "Ll"),
    "kUpper": (str.isupper, lambda c, k: k == "Lu"),
    "kDigit": (str.isdigit, lambda c, k: k == "Nd"),
    "kNumeric": (str.isnumeric, lambda c, k: k in ("Nd", "Nl", "No")),
    "kIdentifierStart": (str.isidentifier, lambda c, k: c == "_" or k in LETTERS or k == "Nl"),
    "kIdentifierPart": (lambda c: ("a" + c).isidentifier(), lambda c, k: c == "_" or k in LETTERS + ("Nl", "Nd", "Mn", "Mc", "Pc")),
    "kCaseIgnorable": (ignorable, lambda c, k: k in ("Mn", "Me", "Cf", "Lm", "Sk")),
}


def exceptions():
    for name, (said, by_category) in PROPERTIES.items():
        ranges = []
        for c in POINTS:
            if said(chr(c)) == by_category(chr(c), category(chr(c))):
                continue
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        yield from ((first, last, name) for first, last in ranges)


def text(s):
    return 'U"' + "".join(c if c.isascii() else f"\\U{ord(c):08x}" for c in s) + '"'


def main():
    special = [chr(c) for c in POINTS if max(len(chr(c).upper()), len(chr(c).title())) > 1]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "chat", "jinja", "case_tables.h")
    with open(path, "w", encoding="utf-8") as f:
        f.write("""#pragma once
// What CPython 3.11's str methods do with code points beyond what their categories say. Made by
// tools/make_case_tables.py. Not to be edited.
#include <string_view>

namespace tessera::chat {

enum class Property { kLower, kUpper, kDigit, kNumeric, kIdentifierStart, kIdentifierPart, kCaseIgnorable };

/// Code points for which the property is not what the category says.
struct PropertyException {
  char32_t first, last;
  Property property;
};

/// Whose upper or title case is more than one code point.
struct SpecialCase {
  char32_t from;
  std::u32string_view upper, title;
};

// clang-format off
inline constexpr PropertyException kPropertyExceptions[] = {
""")
        f.writelines(f"    {{0x{first:x}, 0x{last:x}, Property::{name}}},\n" for first, last, name in exceptions())
        f.write("};\ninline constexpr SpecialCase kSpecialCases[] = {\n")
        f.writelines(f"    {{0x{ord(c):x}, {text(c.upper())}, {text(c.title())}}},\n" for c in special)
        f.write("};\n// clang-format on\n\n}  // namespace tessera::chat\n")


if __name__ == "__main__":
    main()
