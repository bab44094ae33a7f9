"""GPTQ and AWQ matrices and tiny Llama folders, made by the formulas of the two formats alone (auto-gptq and autoawq are
not needed): random codes, zero points and scales, packed into words, with the values scale * (code - zero) beside them.
The folders' logits are transformers' over the dense values.

    python make_grouped.py ../goldens/C_quant/base_llama     # writes here; needs torch, safetensors, transformers
"""
import json, os, sys
import numpy as np, torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds the output of this number


def pack(numbers, bits, axis, order=None):
    """Words of 32 bits along an axis, the first number in the lowest bits."""
    n = np.moveaxis(numbers.astype(np.uint64), axis, 0)
    per = 32 // bits
    words = np.zeros((n.shape[0] // per,) + n.shape[1:], np.uint64)
    for i in range(per):
        words |= n[(order[i] if order else i)::per] << np.uint64(bits * i)
    return torch.from_numpy(np.moveaxis(words.astype(np.uint32).view(np.int32), 0, axis).copy())


def quantise(w, bits, group, g, layout, v2=False, act_order=False):
    """w: [out, in] or None for random codes. Returns the tensors of the format and the values [out, in]."""
    rows, cols = w.shape
    groups = 1 if group == -1 else -(-cols // group)
    g_idx = np.zeros(cols, np.int64) if group == -1 else np.arange(cols) // group
    if act_order: g_idx = g_idx[g.permutation(cols)]
    scale, zero = np.zeros((groups, rows), np.float16), np.zeros((groups, rows), np.int64)
    top = 2**bits - 1
    for k in range(groups):
        part = w[:, g_idx == k]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scale[k] = np.maximum((high - low) / top, 1e-4)
        zero[k] = np.clip(np.round(-low / scale[k].astype(np.float32)), 0, top)
    s, z = scale[g_idx].astype(np.float32).T, zero[g_idx].T      # [out, in]
    codes = np.clip(np.round(w / s) + z, 0, top).astype(np.int64)
    values = torch.from_numpy(s * (codes - z).astype(np.float32))
    t = {"scales": torch.from_numpy(scale)}
    if layout == "gptq":
        t["qweight"] = pack(codes.T, bits, 0)
        t["qzeros"] = pack(zero if v2 else (zero - 1) % (top + 1), bits, 1)
        t["g_idx"] = torch.from_numpy(g_idx.astype(np.int32))
    else:
        t["qweight"] = pack(codes.T, bits, 1, AWQ_ORDER)
        t["qzeros"] = pack(zero, bits, 1, AWQ_ORDER)
    return t, values


def matrices():
    out, g = {}, np.random.default_rng(7)
    for name, rows, cols, kw in [
        ("gptq_g32", 24, 128, dict(bits=4, group=32, layout="gptq")),
        ("gptq_g64_act", 16, 192, dict(bits=4, group=64, layout="gptq", act_order=True)),
        ("gptq_g128", 8, 256, dict(bits=4, group=128, layout="gptq")),
        ("gptq_whole", 40, 72, dict(bits=4, group=-1, layout="gptq")),
        ("gptq_short_last", 16, 80, dict(bits=4, group=32, layout="gptq")),
        ("gptq_v2_g32", 24, 64, dict(bits=4, group=32, layout="gptq", v2=True)),
        ("gptq_8bit_g32", 12, 64, dict(bits=8, group=32, layout="gptq")),
        ("awq_g32", 24, 96, dict(bits=4, group=32, layout="awq")),
        ("awq_g128", 16, 256, dict(bits=4, group=128, layout="awq")),
    ]:
        w = g.normal(size=(rows, cols)).astype(np.float32)
        w[0] = np.abs(w[0])  # whose zero point is 0
        t, values = quantise(w, g=g, **kw)
        out.update({f"{name}.{k}": v for k, v in t.items()})
        out[f"{name}.values"] = values
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(HERE, "matrices.safetensors"))


def folder(base, name, quantization, **kw):
    from transformers import AutoModelForCausalLM
    g = np.random.default_rng(11)
    dense, stored = load_file(os.path.join(base, "model.safetensors")), {}
    for key, value in dense.items():
        if "_proj.weight" not in key:
            stored[key] = dense[key] = value.half()
            continue
        t, values = quantise(value.float().numpy(), g=g, **kw)
        stored.update({key[:-6] + k: v for k, v in t.items()})
        dense[key] = values
    out = os.path.join(HERE, name)
    os.makedirs(out, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32).eval()
    missing = model.load_state_dict({k: v.float() for k, v in dense.items()}, strict=False)
    assert not missing.unexpected_keys, missing
    ids = torch.from_numpy(np.random.default_rng(3).integers(3, 96, (3, 9)))
    with torch.no_grad(): logits = model(input_ids=ids).logits
    config = json.load(open(os.path.join(base, "config.json")))
    config["dtype"] = "float16"
    config["quantization_config"] = quantization
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=2)
    save_file({k: v.contiguous() for k, v in stored.items()}, os.path.join(out, "model.safetensors"), {"format": "pt"})
    save_file({"input_ids": ids, "logits": logits.contiguous()}, os.path.join(out, "io.safetensors"), {"format": "pt"})


matrices()
base = sys.argv[1]
folder(base, "gptq_llama", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False,
                            "checkpoint_format": "gptq", "damp_percent": 0.01, "true_sequential": True},
       bits=4, group=32, layout="gptq", act_order=True)
folder(base, "awq_llama", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                           "modules_to_not_convert": None}, bits=4, group=32, layout="awq")
