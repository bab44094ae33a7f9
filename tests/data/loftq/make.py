"""peft's loftq_init on matrices of the tiny Llama of goldens/B_train: python make.py. It computes on "cuda" alone; here its
tensors stay on the CPU."""

from pathlib import Path

import peft.utils.loftq_utils as loftq
import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
plain_to = torch.Tensor.to


def on_cpu(value):
    return "cpu" if isinstance(value, (str, torch.device)) and str(value).startswith("cuda") else value


torch.Tensor.to = lambda self, *args, **kwargs: plain_to(self, *map(on_cpu, args), **{k: on_cpu(v) for k, v in kwargs.items()})
loftq.clear_device_cache = lambda *args, **kwargs: None
weights = load_file(HERE.parent / "goldens/B_train/base_llama/model.safetensors")
out = {}
for layer in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
    for iterations in (1, 2, 5):
        base, a, b = loftq.loftq_init(weights[layer + ".weight"], num_bits=4, reduced_rank=4, num_iter=iterations)
        out[f"{iterations}.{layer}.base"] = base.contiguous()
        out[f"{iterations}.{layer}.update"] = (b @ a).contiguous()
save_file(out, HERE / "expected.safetensors")
