"""bnb_problem.safetensors, bnb_expected.safetensors: optimizers on a CPU (torch 2.13.0), 8 steps: those of bitsandbytes 0.50.2,
StableAdamW of torch-optimi 0.3.3, GrokAdamW of grokadamw 0.1.2.

    python make_bnb.py DIR
"""

import sys

import bitsandbytes as bnb
import grokadamw
import optimi
import torch
from safetensors.torch import save_file

SHAPES = {"w": (72, 80), "small": (20, 30), "b": (80,)}
STEPS = 8
RUNS = {
    "ademamix_8bit": (bnb.optim.AdEMAMix8bit, dict(weight_decay=0.01)),
    "ademamix_8bit_scheduled": (bnb.optim.AdEMAMix8bit, dict(weight_decay=0.0, t_alpha=5, t_beta3=6)),
    "ademamix": (bnb.optim.AdEMAMix, dict(weight_decay=0.01)),
    "rmsprop_bnb_8bit": (bnb.optim.RMSprop8bit, dict(weight_decay=0.01)),
    "rmsprop_bnb": (bnb.optim.RMSprop, dict(weight_decay=0.01, alpha=0.9)),
    "lion_32bit": (bnb.optim.Lion, dict(weight_decay=0.1)),
    "stable_adamw": (optimi.StableAdamW, dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, triton=False, foreach=False)),
    "stable_adamw_decoupled": (
        optimi.StableAdamW,
        dict(betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01, decouple_lr=True, max_lr=0.01, triton=False, foreach=False),
    ),
    "grokadamw": (grokadamw.GrokAdamW, dict(weight_decay=0.01)),
    "grokadamw_unclipped": (grokadamw.GrokAdamW, dict(weight_decay=0.0, gamma=0.3, lamb=1.0, gradient_clipping=0.0)),
}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(8)
    problem = {f"init.{k}": torch.randn(s, generator=g) for k, s in SHAPES.items()}
    for i in range(STEPS):
        for k, s in SHAPES.items():
            grad = torch.randn(s, generator=g) * (0.02 + 0.05 * (i % 3))
            grad[..., 0] *= 5
            problem[f"step{i}.grad.{k}"] = grad.to(torch.bfloat16)
    expected = {}
    for name, (cls, kwargs) in RUNS.items():
        params = {k: torch.nn.Parameter(problem[f"init.{k}"].clone()) for k in sorted(SHAPES)}
        optimizer = cls(list(params.values()), lr=1e-3, **kwargs)
        for i in range(STEPS):
            for k, p in params.items():
                p.grad = problem[f"step{i}.grad.{k}"].float()
            optimizer.step()
        for k, p in params.items():
            expected[f"{name}.param.{k}"] = p.detach().clone()
            state = optimizer.param_groups[0]["state"][p] if name.startswith("grok") else optimizer.state[p]
            for key, value in state.items():
                if torch.is_tensor(value) and key != "eps_sq":
                    expected[f"{name}.state.{k}.{key}"] = value.clone()
    save_file(problem, f"{folder}/bnb_problem.safetensors")
    save_file(expected, f"{folder}/bnb_expected.safetensors")


main(sys.argv[1])
