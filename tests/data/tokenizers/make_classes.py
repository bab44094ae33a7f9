"""Writes classes/: small folders for the tokenizer classes of transformers 4.57.3, and what AutoTokenizer makes of texts.

    python make_classes.py BOOK_TXT        # in this folder; BOOK_TXT: any long text, for training

classes/cases.json lists folders: which of the files beside it they hold, what else is written into them, and for every
text the CRC-32 of its ids, offsets, type ids of a pair, and texts (as tests/unit/text/classes_test.cc puts them together).
"""
import itertools
import json
import os
import shutil
import sys
import tempfile
import zlib

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import sentencepiece  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402
from transformers import AutoTokenizer, BertTokenizerFast, GPT2TokenizerFast, LlamaTokenizerFast, T5TokenizerFast  # noqa: E402

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "classes")
TEXTS = ["", " ", "a", "Hello world", " Hello  world ", "The company said that it would not.", "\n\n x\r\n", "don't DON'T we'll , a .", "1234567 1,2",
         "<s>Hi</s> there<s> x", "a <mask> b<mask>c  [MASK]d", "[CLS] a [SEP] b", "x <extra_id_0> y<extra_id_99>z", "caf\u00e9 na\u00efve E\u0301 \u4e2d\u6587",
         "<|endoftext|> a<|endoftext|>", "a<extra> <image>b", "<pad><unk>", "\u2581<PRE> a \u2581<MID>b", "Tab\tand  two   spaces \u00a0x", "<eop><s>NOTUSED <new> new"]
LLAMA = [{}, {"legacy": False}, {"add_eos_token": True}, {"add_bos_token": False}, {"add_prefix_space": True}, {"add_prefix_space": False},
         {"add_prefix_space": False, "legacy": False}, {"add_prefix_space": True, "legacy": False}, {"from_slow": True}, {"from_slow": True, "legacy": False},
         {"add_prefix_space": None, "legacy": False}, {"bos_token": "</s>"}, {"bos_token": None}, {"bos_token": None, "add_bos_token": False},
         {"pad_token": "<new>"}, {"additional_special_tokens": ["<extra>", "world"]}, {"extra_special_tokens": {"image_token": "<image>"}},
         {"eos_token": {"__type": "AddedToken", "content": "<new>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}}, {"eos_token": {"content": "<new>"}},
         {"clean_up_tokenization_spaces": True}]


def token(content, **keys):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **keys}


def added(content, **keys):
    return {"__type": "AddedToken", **token(content, **keys)}


def folders():
    """(files, configuration, other files)"""
    maps = {"bos_token": "</s>", "pad_token": token("<new>", lstrip=True), "additional_special_tokens": ["<extra>", token("<image>")]}
    decoder = {"added_tokens_decoder": {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "420": token("<image>", rstrip=True, special=False)}}
    both = ["llama.model:tokenizer.model", "llama.json:tokenizer.json"]
    for files, keys in itertools.product((both[:1], both[1:], both), LLAMA):
        yield files, {"tokenizer_class": "LlamaTokenizer", **keys}, {}
    for files in (both[:1], both[1:], both):
        for config in ({}, decoder, {"bos_token": "<unk>"}, {"bos_token": "<unk>", "add_prefix_space": True}, {"additional_special_tokens": ["world"]},
                       {"additional_special_tokens": ["world"], **decoder}, {**decoder, "bos_token": added("<image>")}):
            yield files, {"tokenizer_class": "LlamaTokenizerFast", **config}, {"special_tokens_map.json": maps}
        yield files, {"tokenizer_class": "LlamaTokenizer"}, {"added_tokens.json": {"<extra>": 420, "new": 421}}
        yield files, {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}, {"added_tokens.json": {"<extra>": 420, "new": 421}, "special_tokens_map.json": {"pad_token": "<extra>"}}
        yield files, None, {"config.json": {"model_type": "mistral"}}
        yield files, {"bos_token": "</s>"}, {"config.json": {"model_type": "llama"}}
        yield files, {"add_prefix_space": False}, {"config.json": {"model_type": "phi3", "tokenizer_class": "LlamaTokenizer"}, "special_tokens_map.json": maps}
        for name in ("CodeLlamaTokenizer", "GemmaTokenizer"):
            for keys in ({}, {"add_prefix_space": False}, {"legacy": False, "add_eos_token": True}, {"additional_special_tokens": ["<extra>"]}):
                own = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"} if name[0] == "G" else {}
                yield files, {"tokenizer_class": name, **own, **keys}, {}
    for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer", "TokenizersBackend", "FooTokenizer", "XLMTokenizer"):
        yield both, {"tokenizer_class": name, "bos_token": "<s>"}, {}
    slow, fast = ["gpt2.vocab:vocab.json", "gpt2.merges:merges.txt"], ["gpt2.json:tokenizer.json"]
    names = "GPT2 CodeGen Qwen2 Roberta Bart LED Longformer Mvp Deberta Blenderbot Bloom Cohere GPTNeoX PreTrained OpenAIGPT Herbert CLIP Whisper MarkupLM"
    for files, name in itertools.product((slow, fast, slow + fast), names.split()):
        full = "PreTrainedTokenizerFast" if name == "PreTrained" else name + "Tokenizer"
        for keys in ({}, {"add_prefix_space": True}, {"add_bos_token": True, "add_eos_token": True}, {"trim_offsets": False, "mask_token": "<mask>"},
                     {"from_slow": True}, {"mask_token": added("<mask>", rstrip=True)}):
            own = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
            own |= {"cls_token": "<s>", "sep_token": "</s>"} if "mask_token" not in keys or name == "Deberta" else {}
            if name in ("CLIP", "Whisper", "MarkupLM") and keys:
                continue
            yield files, {"tokenizer_class": full, **own, **keys}, {}
    for model_type in ("gpt2", "opt", "roberta", "qwen2", "gpt_neox", "bloom", "falcon", "phi", "unheard_of"):
        yield slow + fast, {}, {"config.json": {"model_type": model_type}, "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "</s>"}}
    slow, fast = ["bert.vocab:vocab.txt"], ["bert.json:tokenizer.json"]
    names = "Bert ConvBert DistilBert DPRQuestionEncoder Electra LayoutLM Lxmert MobileBert SqueezeBert Funnel MPNet RoFormer LayoutLMv2 PreTrained"
    for files, name in itertools.product((slow, fast, slow + fast), names.split()):
        full = "PreTrainedTokenizerFast" if name == "PreTrained" else name + "Tokenizer"
        for keys in ({}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, {"do_lower_case": False, "strip_accents": True, "from_slow": True}):
            own = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
            if name in ("RoFormer", "LayoutLMv2") and keys:
                continue
            yield files, {"tokenizer_class": full, **own, **keys}, {}
        for inputs in (["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]):
            yield files, {"tokenizer_class": full, **own, "model_input_names": inputs}, {}
    for model_type in ("bert", "distilbert", "mpnet"):
        yield slow + fast, None, {"config.json": {"model_type": model_type}}
    slow, fast = ["t5.model:spiece.model"], ["t5.json:tokenizer.json"]
    for files, keys in itertools.product((slow, fast, slow + fast), (
            {}, {"legacy": False}, {"add_prefix_space": True}, {"add_prefix_space": False}, {"extra_ids": 3}, {"extra_ids": 0}, {"from_slow": True},
            {"additional_special_tokens": ["<extra>"]}, {"extra_ids": 2, "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>", "<image>"]},
            {"extra_ids": 3, "additional_special_tokens": ["<extra_id_0>"]})):
        yield files, {"tokenizer_class": "T5Tokenizer", **keys}, {}
    yield slow + fast, None, {"config.json": {"model_type": "t5"}}
    names = "Albert Barthez BigBird Camembert DebertaV2 FNet MBart MBart50 MT5 Nllb Pegasus Reformer RemBert SeamlessM4T XGLM XLMRoberta XLNet Cpm ByT5 Marian"
    for name in names.split():
        for keys in ({}, {"mask_token": "<mask>", "do_lower_case": True}):
            yield fast, {"tokenizer_class": name + "Tokenizer", **keys}, {}
        yield slow, {"tokenizer_class": name + "Tokenizer"}, {}


def train(book):
    spm = dict(input=book, num_threads=1, minloglevel=2, character_coverage=0.995)
    at = lambda name: os.path.join(HERE, name)  # noqa: E731
    sentencepiece.SentencePieceTrainer.train(model_prefix=at("llama"), model_type="bpe", vocab_size=420, byte_fallback=True, split_digits=True,
                                             remove_extra_whitespaces=False, normalization_rule_name="identity", **spm)
    sentencepiece.SentencePieceTrainer.train(model_prefix=at("t5"), model_type="unigram", vocab_size=200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                                             normalization_rule_name="identity", **spm)
    LlamaTokenizerFast(at("llama.model")).backend_tokenizer.save(at("llama.json"), pretty=False)
    T5TokenizerFast(at("t5.model"), extra_ids=3).backend_tokenizer.save(at("t5.json"), pretty=False)
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trained.train([book], trainers.WordPieceTrainer(vocab_size=260, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<sep>", "<cls>"], show_progress=False))
    vocabulary = trained.get_vocab()
    open(at("bert.vocab"), "w", encoding="utf-8").write("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    shutil.copy(at("bert.vocab"), at("vocab.txt"))
    BertTokenizerFast(at("vocab.txt"), do_lower_case=False, strip_accents=False).backend_tokenizer.save(at("bert.json"), pretty=False)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train([book], trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                              special_tokens=["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"]))
    for file in trained.model.save(HERE):
        shutil.move(file, at({"vocab.json": "gpt2.vocab", "merges.txt": "gpt2.merges"}[os.path.basename(file)]))
    GPT2TokenizerFast(at("gpt2.vocab"), at("gpt2.merges")).backend_tokenizer.save(at("gpt2.json"), pretty=False)
    for name in ("llama.vocab", "t5.vocab", "vocab.txt"):
        os.remove(at(name))


def written(path, files, config, others):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for file in files:
        source, name = file.split(":")
        shutil.copy(os.path.join(HERE, source), os.path.join(path, name))
    for name, root in {**({} if config is None else {"tokenizer_config.json": config}), **others}.items():
        json.dump(root, open(os.path.join(path, name), "w"))


def result(tokenizer, text):
    """CodeLlama's class takes a pair for the two sides of a gap, which is not followed."""
    def pair(special):
        if "CodeLlama" in type(tokenizer).__name__:
            return []
        both = tokenizer(text, "x a", add_special_tokens=special, return_token_type_ids=True)
        return both.input_ids + both.token_type_ids

    e = tokenizer(text, return_offsets_mapping=True)
    parts = [" ".join(map(str, e.input_ids)), " ".join(f"{a},{b}" for a, b in e.offset_mapping), " ".join(map(str, tokenizer(text, add_special_tokens=False).input_ids)),
             " ".join(map(str, pair(True))), " ".join(map(str, pair(False))), tokenizer.decode(e.input_ids), tokenizer.decode(e.input_ids, skip_special_tokens=True)]
    return zlib.crc32("\x1f".join(parts).encode())


def main():
    if len(sys.argv) > 1:
        shutil.rmtree(HERE, ignore_errors=True)
        os.makedirs(HERE)
        train(sys.argv[1])
    out = []
    with tempfile.TemporaryDirectory() as top:
        for number, (files, config, others) in enumerate(folders()):
            path = os.path.join(top, "folder")
            written(path, files, config, others)
            case = {"files": files, "config": config, "others": others}
            try:
                tokenizer = AutoTokenizer.from_pretrained(path)
                if not tokenizer.is_fast:
                    raise ValueError("slow")
                names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
                case |= {"size": len(tokenizer), "special": [getattr(tokenizer, n) or "" for n in names], "type_ids": "token_type_ids" in tokenizer("a"), "crc": [result(tokenizer, t) for t in TEXTS]}
            except Exception as e:  # AutoTokenizer refuses the folder
                case["refused"] = f"{type(e).__name__}: {e}"[:80]
            out.append(json.dumps(case, separators=(",", ":")))
    with open(os.path.join(HERE, "cases.json"), "w") as f:
        f.write(json.dumps({"texts": TEXTS})[:-1] + ', "cases": [\n' + ",\n".join(out) + "\n]}\n")


if __name__ == "__main__":
    main()
