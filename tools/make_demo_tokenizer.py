#!/usr/bin/env python3
"""Trains the demo's Unigram tokenizer on the demo's texts and writes it in T5's published form.

    pip install sentencepiece==0.2.3 transformers==4.57.3
    tools/make_demo_tokenizer.py [FOLDER]    (default: examples/demo; reads FOLDER/data, writes FOLDER/model)

Writes spiece.model and tokenizer.json (the same pieces and scores). Ids: <pad> 0, </s> 1, <unk> 2, as T5's.
"""

import csv
import json
import sys
from pathlib import Path

import sentencepiece
from transformers import T5TokenizerFast

VOCAB = 640


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "examples/demo")
    texts, labels = [], set()
    for line in (folder / "data/Sentences_demo.txt").read_text(encoding="iso-8859-1").splitlines():
        text, _, label = line.rpartition("@")
        texts.append(text)
        labels.add(label)
    with open(folder / "data/reading_demo.csv", newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            texts.append(row["text"])
            labels.add(row["label"])
    # The labels are given often enough that each becomes one piece: a target is then that piece and </s>. The marks behind
    # them matter: the trainer considers only substrings that are followed by different characters.
    texts += [label + mark for label in sorted(labels) for mark in ("", ".", ",")] * 200

    model = folder / "model"
    model.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(model / "spiece"), model_type="unigram", vocab_size=VOCAB, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>", normalization_rule_name="nmt_nfkc", num_threads=1,
        shuffle_input_sentence=False, minloglevel=1)
    (model / "spiece.vocab").unlink()
    fast = T5TokenizerFast(vocab_file=str(model / "spiece.model"), extra_ids=0, legacy=False, add_prefix_space=True)
    fast.backend_tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "T5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "extra_ids": 0, "legacy": False,
        "add_prefix_space": True, "model_max_length": 512}, indent=2) + "\n")
    for label in sorted(labels):
        ids = fast(label).input_ids
        if len(ids) != 2:
            raise SystemExit(f"the label '{label}' became {len(ids) - 1} pieces: {fast.convert_ids_to_tokens(ids)}")
    print(f"{VOCAB} pieces; longest sentence {max(len(fast(t).input_ids) for t in texts)} ids; {len(labels)} labels of one piece each")


if __name__ == "__main__":
    main()
