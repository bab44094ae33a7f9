#!/usr/bin/env python3
"""Writes the folders beside this file: bodies of small models with random weights, an adapter over each, and what
merge_and_unload() saves, by transformers 4.57 and PEFT 0.21 (pip install transformers peft torch)."""
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

HERE = pathlib.Path(__file__).parent
SIZES = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, max_position_embeddings=12,
             type_vocab_size=1)
CASES = {
    "bert_dense": (BertModel(BertConfig(**SIZES)), dict(target_modules=["dense"])),  # the pooler's, too
    "bert_saved": (BertModel(BertConfig(**SIZES)), dict(target_modules=["query"], modules_to_save=["pooler"])),
    "bert_without": (BertModel(BertConfig(**SIZES), add_pooling_layer=False), dict(target_modules=["query"])),
    "roberta": (RobertaModel(RobertaConfig(**SIZES)), dict(target_modules=["query", "value"])),
}

torch.manual_seed(0)
for name, (model, lora) in CASES.items():
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(HERE / name / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, init_lora_weights=False, **lora))
    for parameter_name, parameter in adapted.named_parameters():
        if "modules_to_save" in parameter_name:
            parameter.data.normal_(std=0.2)
    adapted.save_pretrained(HERE / name / "adapter")
    (HERE / name / "adapter" / "README.md").unlink()
    adapted.merge_and_unload().save_pretrained(HERE / name / "merged")
