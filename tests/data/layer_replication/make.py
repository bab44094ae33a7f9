"""Writes what tests/unit/tasks/layer_replication_test.cc compares with: LoRA over replicated layers of the goldens' tiny
Llama, three steps of training with torch's AdamW.

    python make.py        # torch 2.13, transformers 4.57, peft 0.21.2; in this folder
"""
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

BASE = "../goldens/B_train/base_llama"
CASES = {
    "lora": dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], layer_replication=[[0, 2], [0, 1], [1, 2], [1, 2]],
                 rank_pattern={"layers.3.mlp.down_proj": 3}),
    "dora": dict(r=2, lora_alpha=2, target_modules="all-linear", layer_replication=[[1, 2], [0, 2]], use_dora=True),
}


def batch(step):
    ids = torch.arange(4 * 9).mul(7 + 2 * step).remainder(90).add(3).view(4, 9)
    return dict(input_ids=ids, labels=ids.clone())


for name, settings in CASES.items():
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="eager"),
                           LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_B" in key:
                p.normal_(0, 0.1)
    os.makedirs(name, exist_ok=True)
    model.save_pretrained(f"{name}/start")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
    out = dict(input_ids=batch(9)["input_ids"], logits_start=model(input_ids=batch(9)["input_ids"]).logits.detach())
    losses = []
    for step in range(3):
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    out |= dict(losses=torch.stack(losses), logits_end=model(input_ids=batch(9)["input_ids"]).logits.detach())
    model.save_pretrained(f"{name}/end")
    for place in ("start", "end"):
        os.remove(f"{name}/{place}/README.md")
    save_file({k: v.contiguous() for k, v in out.items()}, f"{name}/expect.safetensors")
