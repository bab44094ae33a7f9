#!/usr/bin/env python3
"""Writes rows of two texts, and what transformers' Trainer makes of them with run_glue.py's preparation for MRPC.

    python3 make_pairs.py TESSERA    # transformers 4.57.3, torch (CPU), scikit-learn; TESSERA: the program, for the first weights

expect.json has for each of three tiny models its config.json, the files of its tokenizer, the loss of every step, the last evaluation and
the predictions of the test rows.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from sklearn.metrics import f1_score  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZERS = HERE.parent / "tokenizers"
WORDS = "the master said that school was good and they went back again after a long day of rain".split()
LABELS = ["not_equivalent", "equivalent"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128,
         "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2, "num_labels": 2}
MODELS = {
    "bert": ({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 264, "pad_token_id": 0, **SIZES},
             {"vocab.txt": "classes/bert.vocab"}),
    "roberta": ({"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"], "vocab_size": 564, "type_vocab_size": 1,
                 "pad_token_id": 557, **SIZES, "max_position_embeddings": 700},
                {"vocab.json": "reference/roberta/vocab.json", "merges.txt": "reference/roberta/merges.txt"}),
    "deberta": ({"model_type": "deberta-v2", "architectures": ["DebertaV2ForSequenceClassification"], "vocab_size": 304, "type_vocab_size": 2,
                 "pad_token_id": 0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "share_att_key": True,
                 "norm_rel_ebd": "layer_norm", "position_biased_input": False, "pooler_dropout": 0.0, "pooler_hidden_size": 32, **SIZES},
                {"spm.model": "deberta/spm.model"}),
}


def rows(r, count, labels=True):
    out = []
    for _ in range(count):
        first = r.choices(WORDS, k=r.randint(1, 12))
        same = r.random() < 0.5
        second = r.sample(first, len(first)) if same else r.choices(WORDS, k=r.randint(1, 12))
        out.append({"sentence1": " ".join(first), "sentence2": " ".join(second), **({"label": int(same)} if labels else {})})
    return out


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokenizer, rows):
        prepared = tokenizer([row["sentence1"] for row in rows], [row["sentence2"] for row in rows], max_length=24, truncation=True)
        self.rows = [{key: prepared[key][i] for key in prepared.keys()} | ({"labels": row["label"]} if "label" in row else {}) for i, row in enumerate(rows)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def measures(found):
    chosen = found.predictions.argmax(-1)
    out = {"accuracy": float((chosen == found.label_ids).mean()), "f1": float(f1_score(found.label_ids, chosen))}
    return out | {"combined_score": float(numpy.mean(list(out.values())))}


class Trainer(transformers.Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        return loss


def reference(program, config, files, data):
    with tempfile.TemporaryDirectory() as top:
        bare, model = os.path.join(top, "bare"), os.path.join(top, "model")
        os.makedirs(bare)
        pathlib.Path(bare, "config.json").write_text(json.dumps(config))
        for name, source in files.items():
            shutil.copy(TOKENIZERS / source, os.path.join(bare, name))
        subprocess.run([program, "init-model", bare, model], check=True, stdout=subprocess.DEVNULL)
        tokenizer = transformers.AutoTokenizer.from_pretrained(bare)
        args = transformers.TrainingArguments(
            output_dir=os.path.join(top, "out"), use_cpu=True, per_device_train_batch_size=8, per_device_eval_batch_size=4, learning_rate=1e-3,
            lr_scheduler_type="constant", num_train_epochs=2, seed=7, save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no")
        trainer = Trainer(
            model=transformers.AutoModelForSequenceClassification.from_pretrained(model, attn_implementation="eager"), args=args,
            train_dataset=Rows(tokenizer, data["train"]), eval_dataset=Rows(tokenizer, data["validation"]), compute_metrics=measures,
            data_collator=transformers.DataCollatorWithPadding(tokenizer))
        trainer.losses = []
        trainer.train()
        evaluation = trainer.evaluate()
        logits = trainer.predict(Rows(tokenizer, data["test"])).predictions
    names = ("eval_loss", "eval_accuracy", "eval_f1", "eval_combined_score")
    return {"config": config, "tokenizer": files, "losses": trainer.losses, "evaluation": {name: evaluation[name] for name in names},
            "predictions": [LABELS[i] for i in logits.argmax(-1)]}


def main():
    r = random.Random(5)
    data = {"train": rows(r, 24), "validation": rows(r, 12), "test": rows(r, 12, labels=False)}
    for split, lines in data.items():
        (HERE / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    expect = {name: reference(sys.argv[1], config, files, data) for name, (config, files) in MODELS.items()}
    (HERE / "expect.json").write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(of)}' for name, of in expect.items()) + "\n}\n")


if __name__ == "__main__":
    main()
