"""torchao_problem.safetensors, torchao_expected.safetensors: AdamW4bit and AdamW8bit of torchao 0.18.0 on a CPU (torch 2.13.0),
4 steps, its operations one by one (torch.compile put aside: it fuses them, and rounds otherwise).

    python make_torchao.py DIR
"""

import sys

import torch
from safetensors.torch import save_file

torch.compile = lambda function, **_: function
from torchao.optim import AdamW4bit, AdamW8bit

# Both pack w; 4 bits alone pack v, whose blocks of 256 are not whole; t has no whole blocks, b is small.
SHAPES = {"w": (16, 288), "v": (37, 128), "t": (61, 69), "b": (79,)}
STEPS = 4
RUNS = {
    "adamw_torch_4bit": (AdamW4bit, dict(weight_decay=0.01)),
    "adamw_torch_8bit": (AdamW8bit, dict(weight_decay=0.01, betas=(0.8, 0.99), eps=1e-6)),
}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(9)
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
            for key, value in optimizer.state[p].items():
                if key == "step":
                    continue
                if type(value) is torch.Tensor:
                    expected[f"{name}.state.{k}.{key}"] = value.clone()
                    continue
                for part in ("codes", "scale", "qmap"):
                    expected[f"{name}.state.{k}.{key}.{part}"] = getattr(value, part).clone()
    save_file(problem, f"{folder}/torchao_problem.safetensors")
    save_file(expected, f"{folder}/torchao_expected.safetensors")


main(sys.argv[1])
