"""Writes reference/ and pipelines.json: what transformers 4.57.3 and tokenizers 0.22.2 make of texts.

    python make_reference.py GPT2_FOLDER CHATML_JSON LLAMA3_STYLE_FOLDER BOOK_TXT

GPT-2's vocabulary is cut down to its first merges; BERT's and Llama 2's kinds are trained on the book.
A new run makes the same files but for BERT's pieces and some of the made-up vocabularies in pipelines.json, whose orders are not fixed:
of those that are here, expected.json and the results are what the libraries give.
"""
import json
import os
import random
import shutil
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402
from transformers import (AutoTokenizer, BertTokenizerFast, GPT2TokenizerFast, LlamaTokenizerFast,  # noqa: E402
                          PreTrainedTokenizerFast, Qwen2TokenizerFast, RobertaTokenizerFast)

HERE = os.path.dirname(os.path.abspath(__file__))
POOLS = ["abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789", "  \t\n", "\r\n", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
         "\u00e9\u00fc\u00f1\u00df\u0142\u00e7\u00c5\u0130\u017f", "\u4e2d\u6587\u5b57\u8c48", "\u0430\u0431\u0439\u0401",
         "\U0001f600\U0001f680\u2764\ufe0f\u200d", "\u0301\u0308\u0323\u0327", "\u0627\u0644\u0639", "\u00a0\u2003\u200b\u3000\u180e\u2028\u0085",
         "\u2581\u0120", "\ud55c\uad6d\u1100\u1161", "\uff76\uff9e\uff21\uff11", "\ufb01\u00bd\u00b2\u2460", "\x00\x01\x1b\x7f\ufffd\ufeff",
         "\u0378\ue000\U0010ffff"]
WORDS = "the of and company profit Hello world don't I'll we've na\u00efve caf\u00e9 master School 2024 12345".split()
SPECIALS = ["</s>", "<s>", "<unk>", "<|endoftext|>", "<|im_end|>", "<|begin_of_text|>", "[MASK]", "[SEP]", "<mask>"]
FIXED = ["", " ", "  ", "a", "Hello world", " Hello  world ", "The quick brown fox jumps over the lazy dog.", "\n\n x\r\n", "1234567 1,234.5",
         "don't DON'T we'LL", "def f(x):\n    return x  # ok\n", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643",
         "e\u0301 \u00e9 l\u0308\u0323\u0308", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "x\u180ey\u180e z", "a" * 40, " " * 17 + "b",
         "<s>Hi</s> there<s> x", "[CLS] a [SEP] b [MASK]c", "Stra\u00dfe \u0130stanbul \u01c5", "supercalifragilisticexpialidocious" * 4]


def texts(book, seed, count):
    r = random.Random(seed)
    lines = [line for line in open(book, encoding="utf-8").read().split("\n") if line.strip()]
    out = FIXED + lines[100:112]
    for _ in range(count):
        s = ""
        for _ in range(r.randint(1, 7)):
            x = r.random()
            if x < 0.35:
                s += r.choice(["", " ", "  "]) + r.choice(WORDS)
            elif x < 0.5:
                s += r.choice(["", " "]) + r.choice(SPECIALS) + r.choice(["", " "])
            else:
                pool = r.choice(POOLS)
                s += "".join(r.choice(pool) for _ in range(r.randint(1, 5)))
        out.append(s)
    return out


def write(name, tokenizer, rows):
    out = []
    for text in rows:
        e = tokenizer(text, return_offsets_mapping=True)
        row = {"text": text, "ids": e.input_ids, "offsets": [x for o in e.offset_mapping for x in o],
               "decode": tokenizer.decode(e.input_ids, clean_up_tokenization_spaces=False)}
        plain = tokenizer(text, add_special_tokens=False).input_ids
        if plain != e.input_ids:
            row["plain"] = plain
        skip = tokenizer.decode(e.input_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if skip != row["decode"]:
            row["decode_skip"] = skip
        clean = tokenizer.decode(e.input_ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)
        if clean != skip:
            row["decode_clean"] = clean
        out.append(row)
    pairs = [{"a": a, "b": b, "max_length": m, "ids": tokenizer(a, b, truncation=m > 0, max_length=m or None).input_ids}
             for a, b in zip(rows[6:9], rows[9:12]) for m in (0, 9)]
    special = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    with open(os.path.join(HERE, "reference", name, "expected.json"), "w") as f:
        f.write(json.dumps({"vocab_size": len(tokenizer), "special": special, "pairs": pairs})[:-1] + ', "rows": [\n' +
                ",\n".join(json.dumps(r, separators=(",", ":")) for r in out) + "\n]}\n")


def folder(name):
    path = os.path.join(HERE, "reference", name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def small_gpt2(source, path, count, specials):
    merges = [m for m in open(os.path.join(source, "merges.txt"), encoding="utf-8").read().split("\n")[1:] if m][:count]
    full = json.load(open(os.path.join(source, "vocab.json"), encoding="utf-8"))
    tokens = sorted((t for t in full if len(t) == 1), key=full.get) + ["".join(m.split()) for m in merges] + specials
    json.dump({t: i for i, t in enumerate(dict.fromkeys(tokens))}, open(os.path.join(path, "vocab.json"), "w"), separators=(",", ":"))
    open(os.path.join(path, "merges.txt"), "w", encoding="utf-8").write("#version: 0.2\n" + "\n".join(merges) + "\n")


def small_llama(book, path):
    """Trained as Llama 2's was: BPE, byte fallback, no normalization, a dummy prefix."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=book, model_prefix=os.path.join(path, "tokenizer"), model_type="bpe", vocab_size=1400, byte_fallback=True,
        character_coverage=0.999, split_digits=True, allow_whitespace_only_pieces=True, remove_extra_whitespaces=False,
        normalization_rule_name="identity", num_threads=1, minloglevel=2)
    os.remove(os.path.join(path, "tokenizer.vocab"))


def config(path, **keys):
    json.dump(keys, open(os.path.join(path, "tokenizer_config.json"), "w"), indent=1)


def reference(gpt2, chatml, llama3, book):
    rows = texts(book, 1, 60)
    end = "<|endoftext|>"
    path = folder("gpt2")
    small_gpt2(gpt2, path, 1500, [end])
    write("gpt2", GPT2TokenizerFast.from_pretrained(path), rows)
    path = folder("qwen2")
    small_gpt2(gpt2, path, 400, [end, "<|im_start|>", "<|im_end|>"])
    added = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
             for i, t in ((656, end), (657, "<|im_start|>"), (658, "<|im_end|>"))}
    config(path, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added, eos_token="<|im_end|>", pad_token=end,
           unk_token=None, bos_token=None, additional_special_tokens=["<|im_start|>", "<|im_end|>"],
           chat_template="{{ messages[0]['content'] }}")
    write("qwen2", Qwen2TokenizerFast.from_pretrained(path), rows[:60])
    path = folder("roberta")
    small_gpt2(gpt2, path, 300, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    config(path, tokenizer_class="RobertaTokenizer")
    write("roberta", RobertaTokenizerFast.from_pretrained(path), rows[:60])
    for name, keys in (("llama2", {}), ("llama2_new", {"legacy": False, "add_eos_token": True})):
        path = folder(name)
        small_llama(book, path)
        if keys:
            config(path, tokenizer_class="LlamaTokenizer", add_prefix_space=True, **keys)
        write(name, LlamaTokenizerFast(vocab_file=os.path.join(path, "tokenizer.model"), add_prefix_space=True,
                                       legacy=keys.get("legacy", True), add_eos_token=keys.get("add_eos_token", False)), rows if not keys else rows[:50])
    path = folder("chatml")
    shutil.copy(chatml, path)
    write("chatml", PreTrainedTokenizerFast(tokenizer_file=chatml, eos_token="<|im_end|>", pad_token=end), rows)
    path = folder("llama3_style")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(llama3, file), path)
    write("llama3_style", AutoTokenizer.from_pretrained(path), rows[:60])
    path = folder("bert")
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained.train([book], trainers.WordPieceTrainer(vocab_size=1200, special_tokens=names, show_progress=False))
    vocabulary = trained.get_vocab()
    open(os.path.join(path, "vocab.txt"), "w", encoding="utf-8").write("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    write("bert", BertTokenizerFast(vocab_file=os.path.join(path, "vocab.txt")), rows)


BPE = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
       "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
SPLIT_WORDS = {"type": "WhitespaceSplit"}
PREFIXED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
SPM_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                {"type": "ByteFallback"}, {"type": "Fuse"},
                                                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def byte_level(prefix, regex=True, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def vocabulary(r, kept, extra=(), prefix="", suffix=""):
    """Some characters (all four decorations of each), then words merged from the left."""
    out = {t: i for i, t in enumerate(["<unk>", *extra])}
    merges = []
    for c in "abcdefghijklmnopqrstuvwxyzHIS'013\u0120\u2581\u00e9\u4e2d\u6587\U0001f600.,<>/| ":
        for token in {prefix + c, c, c + suffix, prefix + c + suffix}:
            if r.random() < kept:
                out.setdefault(token, len(out))
    for word in WORDS + ["\u2581the", "\u2581of", "\u0120the", "\u0120of", "aa", "aaaa", "\u2581\u2581"]:
        for i in range(1, len(word)):
            a, b = word[:i], prefix + word[i] + (suffix if i + 1 == len(word) else "")
            a = a if i > 1 else a
            if a in out and b in out and [a, b] not in merges:
                out.setdefault(a + b[len(prefix):], len(out))
                merges.append([a, b])
    r.shuffle(merges)
    return out, merges


def bpe(r, kept=1.0, extra=(), prefix="", suffix="", **keys):
    vocab, merges = vocabulary(r, kept, extra, prefix, suffix)
    old_form = r.random() < 0.5 and not any(" " in part for m in merges for part in m)
    return {**BPE, "vocab": vocab, "merges": [" ".join(m) for m in merges] if old_form else merges,
            "continuing_subword_prefix": prefix or None, "end_of_word_suffix": suffix or None, **keys}


def pipelines(book):
    r = random.Random(3)
    make = {}

    def add(name, model, **stages):
        make[name] = {"version": "1.0", "added_tokens": [], **stages, "model": model}

    every_byte = [f"<0x{i:02X}>" for i in range(256)]
    add("fuse_unk", bpe(r, 0.6, fuse_unk=True), pre_tokenizer=SPLIT_WORDS)
    add("one_piece_fuse_unk", bpe(r, 0.6, fuse_unk=True))
    add("each_unk", bpe(r, 0.6), pre_tokenizer=SPLIT_WORDS)
    add("no_unk", bpe(r, 0.6, unk_token=None), pre_tokenizer=SPLIT_WORDS)
    add("byte_fallback", bpe(r, 0.6, every_byte, byte_fallback=True, fuse_unk=True), normalizer=PREFIXED, decoder=SPM_DECODER)
    add("some_bytes", bpe(r, 0.6, [b for b in every_byte if r.random() < 0.8], byte_fallback=True), normalizer=PREFIXED, decoder=SPM_DECODER)
    add("ignore_merges", {**bpe(r, ignore_merges=True), "merges": []}, pre_tokenizer=SPLIT_WORDS)
    add("prefix", bpe(r, 0.9, prefix="##"), pre_tokenizer=SPLIT_WORDS, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    add("suffix", bpe(r, 0.9, suffix="</w>"), pre_tokenizer=SPLIT_WORDS, decoder={"type": "BPEDecoder", "suffix": "</w>"})
    add("ctc", bpe(r), pre_tokenizer=SPLIT_WORDS, decoder={"type": "CTC", "pad_token": "e", "word_delimiter_token": "|", "cleanup": True})
    add("word_level", {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(["<unk>", *WORDS])}, "unk_token": "<unk>"},
        pre_tokenizer={"type": "Whitespace"})
    for prefix in (True, False):
        add(f"byte_level_{prefix}", bpe(r), pre_tokenizer=byte_level(prefix), post_processor=byte_level(prefix), decoder=byte_level(True))
    add("metaspace_first", bpe(r), pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False})
    add("bert_cased", bpe(r), normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": False},
        pre_tokenizer={"type": "BertPreTokenizer"}, post_processor={"type": "BertProcessing", "sep": ["<unk>", 0], "cls": ["<unk>", 0]})
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "ByteLevel", "StripAccents"):
        add(form, bpe(r), normalizer={"type": form})
    for i in range(4):
        model = bpe(r)
        tokens = [AddedToken("</s>", special=True, normalized=False),
                  AddedToken("<mask>", lstrip=i % 2 == 0, rstrip=i > 1, normalized=False),
                  AddedToken("[MASK]", single_word=i % 2 == 1, normalized=i > 1),
                  AddedToken("Hello", normalized=True, single_word=i > 0), AddedToken("\u00e9", normalized=True)]
        added = []
        for token in tokens:
            taken = model["vocab"].get(token.content)
            identity = taken if taken is not None else len(model["vocab"]) + sum(a["id"] >= len(model["vocab"]) for a in added)
            added.append({"id": identity, "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip,
                          "rstrip": token.rstrip, "normalized": token.normalized, "special": token.special})
        add(f"added_tokens_{i}", model, added_tokens=added, normalizer=[{"type": "Lowercase"}, None, {"type": "NFD"}, PREFIXED][i],
            pre_tokenizer=[SPLIT_WORDS, byte_level(True), None, None][i], post_processor=byte_level(i % 2 == 0))
    rows = [t for t in texts(book, 2, 40) if len(t) < 60]
    out = []
    for name, tokenizer in make.items():
        tokenizer = {k: v for k, v in tokenizer.items() if v is not None}
        oracle = Tokenizer.from_str(json.dumps(tokenizer))
        results = []
        for text in rows:
            try:
                e = oracle.encode(text)
            except Exception:
                results.append(None)  # an unknown character and no unknown token
                continue
            results.append([e.ids, [x for o in e.offsets for x in o], oracle.decode(e.ids, skip_special_tokens=False)])
        out.append(json.dumps({"name": name, "tokenizer": tokenizer, "results": results}, separators=(",", ":")))
    with open(os.path.join(HERE, "pipelines.json"), "w") as f:
        f.write(json.dumps({"texts": rows})[:-1] + ', "pipelines": [\n' + ",\n".join(out) + "\n]}\n")


if __name__ == "__main__":
    reference(*sys.argv[1:5])
    pipelines(sys.argv[4])
