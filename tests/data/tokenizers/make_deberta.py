#!/usr/bin/env python3
"""Writes deberta/: tokenizers of DeBERTa without a tokenizer.json, and what AutoTokenizer makes of texts with them.

    python3 make_deberta.py TEXT    # transformers 4.57.3, sentencepiece, tokenizers; TEXT: a file to train on
"""

import json
import pathlib
import shutil
import sys
import tempfile

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

TEXTS = ["Hello, world!", "  two  spaces, tabs\tand\nlines  ", "Größe №5 — ½ ﬁne", "", "a [MASK] b[SEP]c [CLS]", "日本語 text 🙂", "can't WON'T x_y", "[UNK] [PAD]"]
PAIRS = [("one text", "and another one"), ("", "x")]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
folder = pathlib.Path(__file__).parent / "deberta"
folder.mkdir(exist_ok=True)
sentencepiece.SentencePieceTrainer.train(
    model_prefix=str(folder / "spm"), input=sys.argv[1], model_type="unigram", vocab_size=300, num_threads=1, minloglevel=2, character_coverage=0.99,
    pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")
(folder / "spm.vocab").unlink()
trained = Tokenizer(models.BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trained.train([sys.argv[1]], trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=SPECIAL + ["[MASK]"]))
trained.model.save(str(folder))
V1, V2 = ["vocab.json", "merges.txt"], ["spm.model"]
CASES = [(V2, {"do_lower_case": False, "vocab_type": "spm"}, "deberta-v2"), (V2, {"do_lower_case": True}, "deberta-v2"), (V2, {"split_by_punct": True}, "deberta-v2"),
         (V2, {"tokenizer_class": "DebertaV2Tokenizer"}, None), (V1, {"do_lower_case": False, "vocab_type": "gpt2"}, "deberta"),
         (V1, {"tokenizer_class": "DebertaTokenizer", "add_prefix_space": True}, None)]
cases = []
for files, config, model_type in CASES:
    with tempfile.TemporaryDirectory() as d:
        for file in files:
            shutil.copy(folder / file, d)
        pathlib.Path(d, "tokenizer_config.json").write_text(json.dumps(config))
        if model_type:
            pathlib.Path(d, "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = AutoTokenizer.from_pretrained(d)
        rows = [{"text": t, "ids": tokenizer(t).input_ids} for t in TEXTS]
        for first, second in PAIRS:
            found = tokenizer(first, second)
            rows.append({"text": first, "pair": second, "ids": found.input_ids})
        cases.append({"files": files, "config": config, "model_type": model_type, "size": len(tokenizer), "mask": tokenizer.mask_token_id, "rows": rows})
text = ",\n".join(" " + json.dumps({k: v for k, v in c.items() if k != "rows"})[:-1] + ', "rows": [\n  ' + ",\n  ".join(json.dumps(r) for r in c["rows"]) + "]}" for c in cases)
(folder / "cases.json").write_text("[\n" + text + "\n]\n")
