"""Writes what tests/unit/tasks/eva_test.cc compares with: peft's initialize_lora_eva_weights on the goldens' tiny Llama.

    python make.py        # torch 2.13, transformers 4.57, peft 0.21.2; in this folder
"""
import json
import os

import torch
from peft import EvaConfig, LoraConfig, get_peft_model, initialize_lora_eva_weights
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

BASE = "../goldens/B_train/base_llama"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "plain": dict(lora=dict(r=3, lora_alpha=6, target_modules=ALL), eva=dict()),
    "patterns": dict(lora=dict(r=4, lora_alpha=8, target_modules=ALL, use_rslora=True,
                               rank_pattern={"layers.1.mlp.down_proj": 6}, alpha_pattern={"o_proj": 2}),
                     eva=dict(rho=1.5, tau=0.9, use_label_mask=False, adjust_scaling_factors=False)),
    "whitened": dict(lora=dict(r=2, lora_alpha=4, target_modules=["o_proj", "down_proj"]), eva=dict(rho=3.0, whiten=True)),
}


def batches():
    """Five batches of 6 rows; rows end early, and half of each is no answer."""
    out = []
    for k in range(5):
        g = torch.Generator().manual_seed(100 + k)
        ids = torch.randint(3, 96, (6, 14), generator=g)
        lengths = torch.randint(8, 15, (6, 1), generator=g)
        mask = (torch.arange(14) < lengths).long()
        labels = ids.masked_fill((mask == 0) | (torch.arange(14) < 4), -100)
        out.append(dict(input_ids=ids * mask, attention_mask=mask, labels=labels))
    return out


if __name__ == "__main__":
    data = batches()
    save_file({f"{k}.{name}": t.contiguous() for k, b in enumerate(data) for name, t in b.items()}, "batches.safetensors")
    for name, case in CASES.items():
        torch.manual_seed(0)
        config = LoraConfig(init_lora_weights="eva", eva_config=EvaConfig(**case["eva"]), task_type="CAUSAL_LM", **case["lora"])
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="eager"), config,
                               low_cpu_mem_usage=True)
        initialize_lora_eva_weights(model, data, show_progress_bar=False)
        os.makedirs(name, exist_ok=True)
        model.save_pretrained(name)
        os.remove(f"{name}/README.md")
        given = dict(peft_type="LORA", init_lora_weights="eva", eva_config=case["eva"], task_type="CAUSAL_LM", **case["lora"])
        json.dump(given, open(f"{name}/given.json", "w"), indent=1)
