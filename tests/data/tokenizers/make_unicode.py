"""Writes unicode.json: CRC-32 of what tokenizers 0.22.2 makes of texts around every code point, stage by stage.

    python make_unicode.py        # in this folder

The texts and the blocks are those of tests/unit/text/unicode_test.cc. Every code point stands between letters; to
stages with a context also among marks, spaces and other scripts. Of the unassigned planes and of planes of private use,
and where a context matters of ideographs and syllables, a sample is enough.
"""
import json
import os
import zlib

from tokenizers import Regex, normalizers, pre_tokenizers

# Not Arabic, Cyrillic, Devanagari and Mongolian: of each a few code points of Unicode 15 and 16 are not followed.
SCRIPTS = "Latin Greek Hebrew Bengali Thai Lao Georgian Ethiopic Khmer Hangul Han " \
          "Hiragana Katakana Bopomofo Common Inherited".split()
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cc Cf Co Cn L M N P S Z C".split()
EXPRESSIONS = {  # with a context
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|[^\s\p{L}\p{N}]+|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cjk": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "wide": r"[\x{80}-\x{10FFFF}]+|[^a]", "words": r"\w+|[^\w\s]+", "listed": r"[\w]+|[^\W\d_]",
    "boundary": r"\b", "folds": "(?i:st|ff|fi|fl|ffi|ffl|ss|k|\ufb05|\u00df)", "letters": r"(?i:[a-z]+|\p{Lu}e)",
    "groups": r"(?i:s(?-i:st)|(?:ss)+)|st|(?i)ff|fi"}
CLASSES = {  # one code point at a time
    "space": r"\s+", "digit": r"\d+", "hex": r"\h+", "alpha": r"[[:alpha:]]+", "punct": r"[[:punct:]]+",
    "alnum": r"[[:alnum:]]+|[[:^alpha:]]", **{f"p{c}": rf"\p{{{c}}}+" for c in CATEGORIES},
    **{f"not{c}": rf"[^\p{{{c}}}]+" for c in ("L", "N", "P", "S")}, **{s: rf"\p{{{s}}}+" for s in SCRIPTS}}


def normal(json_form, stage):
    return {"normalizer": json_form}, stage


def bert(**on):
    parts = {**dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False), **on}
    return normal({"type": "BertNormalizer", **parts}, normalizers.BertNormalizer(**parts))


def stages():
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt"):
        yield normal({"type": name}, getattr(normalizers, name)())
    yield bert(clean_text=True)
    yield bert(handle_chinese_chars=True)
    yield bert(strip_accents=True)
    yield bert(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True)
    for name in ("BertPreTokenizer", "Punctuation", "Whitespace", "WhitespaceSplit", "UnicodeScripts"):
        yield {"pre_tokenizer": {"type": name}}, getattr(pre_tokenizers, name)()
    yield {"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, pre_tokenizers.Digits(individual_digits=True)
    yield {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}, pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, pattern in (EXPRESSIONS | CLASSES).items():
        form = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        yield {"pre_tokenizer": form, "name": name, "alone": name in CLASSES}, pre_tokenizers.Split(Regex(pattern), "isolated")


def is_swept(c):
    return not 0xD800 <= c <= 0xDFFF and (c < 0x32400 or 0xE0000 <= c < 0xE0200 or c % 257 == 0)


def is_uniform(c):
    return any(a <= c <= b for a, b in ((0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x17000, 0x18CFF), (0x20000, 0x2F7FF), (0x30000, 0x323FF)))


def texts(alone):
    """(block, text), a text of 64 code points."""
    for first in range(0, 0x110000, 64):
        points = [c for c in range(first, first + 64) if is_swept(c) and (alone or not is_uniform(c) or c % 16 == 0)]
        yield first >> 14, "".join(chr(c) + "a" if alone else text_of(c) for c in points)


def text_of(c):
    return "a{0}b1{0} {0}{0}\u4e2d{0}'{0} S{0}t x\u0315{0}\u0323\u0345{0}e{0}\u0301\u1100{0}\u11a8 \u3046{0}\u3099s".format(chr(c))


def result(stage, text):
    if hasattr(stage, "normalize_str"):
        return stage.normalize_str(text)
    return "\x1f".join(piece for piece, _ in stage.pre_tokenize_str(text))


def main():
    out, known = [], {alone: list(texts(alone)) for alone in (False, True)}
    for form, stage in stages():
        crc = {}
        for block, text in known[form.get("alone", False)]:
            crc[block] = zlib.crc32(result(stage, text).encode(), crc.get(block, 0))
        out.append({**form, "crc": [crc[b] for b in sorted(crc)]})
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "unicode.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in out) + "\n]\n")


if __name__ == "__main__":
    main()
