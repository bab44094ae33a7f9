#!/usr/bin/env python3
"""Writes grid_blocks.gguf and grid_blocks.safetensors: types whose codes name points of a grid or of a table.

    python make_grid_blocks.py .      # needs: pip install gguf==0.19.0 safetensors numpy

Blocks are random bytes; those of <type>.points name every point of the type's grid, with a scale of one.
"""
import sys

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

TYPES = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4"]
SCALE_AT = {"TQ1_0": 52, "TQ2_0": 64}  # of the others' float16: 0
BLOCKS = 6


def random_blocks(rng, kind, count):
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    scales = rng.normal(0, 0.02, count).astype(np.float16).view(np.uint8).reshape(count, 2)
    if kind == "IQ1_M":  # four bits on top of each word of scales
        words = blocks[:, 48:].copy().view("<u2")
        bits = scales.view("<u2")[:, 0].astype(np.uint32)
        for i in range(4):
            words[:, i] = words[:, i] & 0x0FFF | (bits >> 4 * i & 15) << 12
        blocks[:, 48:] = words.view(np.uint8)
    elif kind != "MXFP4":
        at = SCALE_AT.get(kind, 0)
        blocks[:, at:at + 2] = scales
    return blocks


def all_points(rng, kind):
    """Blocks of d = 1 whose codes count through the grid; signs and scales stay random."""
    size = {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512, "IQ1_S": 2048}[kind]
    per = 64 if kind.startswith("IQ3") else 32
    blocks = random_blocks(rng, kind, size // per)
    blocks[:, 0:2] = np.array([1], np.float16).view(np.uint8)
    code = np.arange(size).reshape(-1, per)
    if kind == "IQ2_XXS":
        for i in range(8):
            blocks[:, 2 + 8 * i:6 + 8 * i] = code[:, 4 * i:4 * i + 4]
    elif kind == "IQ2_XS":
        words = blocks[:, 2:66].copy().view("<u2")
        blocks[:, 2:66] = (words & 0xFE00 | code).astype("<u2").view(np.uint8)
    else:
        blocks[:, 2:2 + per] = code & 255
    high = code >> 8
    if kind == "IQ2_S":
        blocks[:, 66:74] = sum(high[:, i::4] << 2 * i for i in range(4))
    if kind == "IQ3_S":
        blocks[:, 66:74] = sum(high[:, i::8] << i for i in range(8))
    if kind == "IQ1_S":
        words = blocks[:, 34:].copy().view("<u2")
        blocks[:, 34:] = (words & 0xF000 | sum(high[:, i::4] << 3 * i for i in range(4))).astype("<u2").view(np.uint8)
    return blocks


def main(folder):
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(f"{folder}/grid_blocks.gguf", "llama")
    expected = {}

    def add(name, kind, blocks):
        number = gguf.GGMLQuantizationType[kind]
        rows = blocks.reshape(2, -1)
        writer.add_tensor(name, rows, raw_dtype=number)
        expected[name] = np.ascontiguousarray(dequantize(rows, number).astype(np.float32))

    for kind in TYPES:
        add(f"t.{kind}", kind, random_blocks(rng, kind, BLOCKS))
        if kind.startswith("IQ") and kind not in ("IQ1_M", "IQ4_NL", "IQ4_XS"):
            add(f"t.{kind}.points", kind, all_points(rng, kind))
            values = expected[f"t.{kind}.points"]
            half = values.astype(np.float16)  # such values fit
            assert (half == values).all()
            expected[f"t.{kind}.points"] = half
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, f"{folder}/grid_blocks.safetensors")


main(sys.argv[1])
