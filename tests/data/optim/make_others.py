"""free_expected.safetensors, lowrank_problem.safetensors, lowrank_expected.safetensors: optimizers on a CPU (torch 2.13.0), 8 steps:
schedulefree 1.4.1, lomo-optim 0.1.1, galore-torch 1.0, apollo-torch 1.0.3 over bitsandbytes 0.50.2, and AnyPrecisionAdamW by its
published formula (torchdistx has no wheels). The first on the tensors of bnb_problem.safetensors.

    PYTHONPATH=<the packages> python make_others.py DIR
"""

import math
import sys

import torch
from safetensors.torch import load_file, save_file

torch.cuda.synchronize = lambda *a: None
torch.Tensor.cuda = lambda self, *a: self

import apollo_torch
import galore_torch
import lomo_optim
import schedulefree

STEPS = 8


class AnyPrecision:
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, kahan=False, m=torch.float32, v=torch.float32, c=torch.bfloat16):
        self.__dict__.update(params=params, lr=lr, betas=betas, eps=eps, wd=weight_decay, kahan=kahan, t=0)
        self.m = [torch.zeros_like(p, dtype=m) for p in params]
        self.v = [torch.zeros_like(p, dtype=v) for p in params]
        self.c = [torch.zeros_like(p, dtype=c) for p in params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, v, c in zip(self.params, self.m, self.v, self.c):
            if self.wd:
                p.mul_(1 - self.lr * self.wd)
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            root = (v.sqrt() / (1 - b2**self.t) ** 0.5).add_(self.eps)
            rate = self.lr / (1 - b1**self.t)
            if self.kahan:
                c.addcdiv_(m, root, value=-rate)
                before = p.clone()
                p.add_(c)
                c.add_(before.sub_(p))
            else:
                p.addcdiv_(m, root, value=-rate)


def gradients(problem, params, step):
    for k, p in params.items():
        p.grad = problem[f"step{step}.grad.{k}"].to(p.dtype)


def start(problem, dtype=torch.float32):
    names = sorted(k[5:] for k in problem if k.startswith("init."))
    return {k: torch.nn.Parameter(problem[f"init.{k}"].to(dtype, copy=True)) for k in names}


def schedule_free(problem, out, name, cls, **kwargs):
    params = start(problem)
    optimizer = cls(list(params.values()), foreach=False, **kwargs)
    optimizer.train()
    for i in range(STEPS):
        gradients(problem, params, i)
        optimizer.step()
    for k, p in params.items():
        out[f"{name}.param.{k}"] = p.detach().clone()
        for key in ("z", "exp_avg_sq"):
            if key in optimizer.state[p]:
                out[f"{name}.state.{k}.{key}"] = optimizer.state[p][key].clone()
    optimizer.eval()
    for k, p in params.items():
        out[f"{name}.average.{k}"] = p.detach().clone()


def any_precision(problem, out, name, dtype, **kwargs):
    params = start(problem, dtype)
    optimizer = AnyPrecision(list(params.values()), lr=1e-3, weight_decay=0.01, **kwargs)
    for i in range(STEPS):
        gradients(problem, params, i)
        optimizer.step()
    for i, (k, p) in enumerate(params.items()):
        out[f"{name}.param.{k}"] = p.detach().float()
        out[f"{name}.state.{k}.exp_avg"] = optimizer.m[i].clone()
        out[f"{name}.state.{k}.exp_avg_sq"] = optimizer.v[i].clone()
        if kwargs.get("kahan"):
            out[f"{name}.state.{k}.compensation"] = optimizer.c[i].clone()


class Model(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        for k, p in params.items():
            self.register_parameter(k, p)


def lomo(problem, out, name, cls, **kwargs):
    params = start(problem)
    model = Model(params)
    optimizer = cls(model, lr=1e-2, **kwargs)
    for i in range(STEPS):
        loss = sum((p * problem[f"step{i}.grad.{k}"].float()).sum() for k, p in params.items())
        optimizer.fused_backward(loss, 1e-2)
    for k, p in params.items():
        out[f"{name}.param.{k}"] = p.detach().clone()


def low_rank(problem, out, name, cls, target, lr=1e-2, **kwargs):
    params = start(problem)
    groups = [{"params": [p for k, p in params.items() if p.dim() < 2]}, {"params": [p for p in params.values() if p.dim() == 2], **target}]
    optimizer = cls(groups, lr=lr, **kwargs)
    for i in range(STEPS):
        gradients(problem, params, i)
        optimizer.step()
    for k, p in params.items():
        out[f"{name}.param.{k}"] = p.detach().clone()
        for key in ("exp_avg", "exp_avg_sq", "state1", "state2"):
            if key in optimizer.state[p]:
                out[f"{name}.state.{k}.{key}"] = optimizer.state[p][key].clone()


def low_rank_problem():
    g = torch.Generator().manual_seed(9)
    shapes = {"t": (24, 10), "u": (10, 24), "b": (10,)}
    problem = {f"init.{k}": torch.randn(s, generator=g) for k, s in shapes.items()}
    for i in range(STEPS):
        for k, s in shapes.items():
            problem[f"step{i}.grad.{k}"] = torch.randn(s, generator=g) * 0.05
    return problem


def main(folder: str) -> None:
    torch.set_num_threads(1)
    problem, out = load_file(f"{folder}/bnb_problem.safetensors"), {}
    schedule_free(problem, out, "schedule_free_adamw", schedulefree.AdamWScheduleFree, lr=1e-2, weight_decay=0.01, warmup_steps=3)
    schedule_free(problem, out, "schedule_free_radam", schedulefree.RAdamScheduleFree, lr=1e-2, weight_decay=0.01, r=1.0)
    schedule_free(problem, out, "schedule_free_sgd", schedulefree.SGDScheduleFree, lr=1e-1, weight_decay=0.01, weight_lr_power=1.0)
    any_precision(problem, out, "any", torch.float32)
    any_precision(problem, out, "any_kahan", torch.bfloat16, kahan=True, m=torch.bfloat16, v=torch.bfloat16)
    lomo(problem, out, "lomo", lomo_optim.Lomo, weight_decay=0.1)
    lomo(problem, out, "adalomo", lomo_optim.AdaLomo, weight_decay=0.1, loss_scale=None)
    large = ("schedule_free_adamw.param", "schedule_free_adamw.average", "any_kahan.param", "adalomo")  # whose largest tensor is kept
    out = {k: v for k, v in out.items() if ".w" not in k or k.startswith(large)}
    save_file(out, f"{folder}/free_expected.safetensors")

    problem, out = low_rank_problem(), {}
    rank = dict(rank=4, update_proj_gap=3, scale=0.25)
    for kind in ("std", "reverse_std", "left", "right", "full"):
        low_rank(problem, out, f"galore_{kind}", galore_torch.GaLoreAdamW, dict(rank, proj_type=kind), no_deprecation_warning=True)
    low_rank(problem, out, "galore_8bit", galore_torch.GaLoreAdamW8bit, dict(rank, proj_type="std"), weight_decay=0.01, min_8bit_size=64)
    low_rank(problem, out, "galore_adafactor", galore_torch.GaLoreAdafactor, dict(rank, proj_type="std"), scale_parameter=False, relative_step=False)
    for name, more in {
        "apollo": dict(proj="random", scale_type="channel", scale=1.0),
        "apollo_tensor": dict(proj="random", scale_type="tensor", scale=128.0),
        "apollo_svd": dict(proj="svd", scale_type="channel", scale=1.0),
    }.items():
        target = dict(rank, proj_type="std", betas=(0.9, 0.99), eps=1e-8, **{k: v for k, v in more.items() if k != "scale"})
        target["scale"] = more["scale"]
        low_rank(problem, out, name, apollo_torch.APOLLOAdamW, target)
    save_file(problem, f"{folder}/lowrank_problem.safetensors")
    save_file(out, f"{folder}/lowrank_expected.safetensors")


main(sys.argv[1])
