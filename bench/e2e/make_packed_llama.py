#!/usr/bin/env python3
"""A Llama folder in NF4, doubly quantised, with random weights: as large as its config.json says, written in pieces of 64 MiB.

    bench/e2e/make_packed_llama.py CONFIG_FOLDER OUTPUT_FOLDER --like SMALL_FOLDER [--layers N]

SMALL_FOLDER: a folder that `tessera quantize --type nf4 --double_quant` wrote, of any Llama; tables of codes are taken from it. One file
for each block, as a folder of a model that size has. Needs Python alone.
"""

import argparse
import json
import os
import struct

POOL = 64 << 20
NF4_BLOCK, NESTED_BLOCK = 64, 256


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("output")
    parser.add_argument("--like", required=True)
    parser.add_argument("--layers", type=int, help="in place of config.json's")
    return parser.parse_args()


def header_of(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size)), 8 + size


def tables_of(folder):
    """The values of the codes, and the description of a matrix: from any matrix of a packed folder."""
    path = os.path.join(folder, "model.safetensors")
    header, start = header_of(path)
    name = next(n for n in header if n.endswith(".weight.nested_absmax"))[: -len(".nested_absmax")]

    def read(entry):
        begin, end = header[entry]["data_offsets"]
        with open(path, "rb") as file:
            file.seek(start + begin)
            return file.read(end - begin)

    state_name = next(n for n in header if n.startswith(name + ".quant_state."))
    return read(name + ".quant_map"), read(name + ".nested_quant_map"), state_name[len(name) :], json.loads(read(state_name))


class Noise:
    """Random bytes, or bfloat16 values, out of a pool, from another place each time."""

    BYTES, VALUES = "bytes", "values"

    def __init__(self):
        pool = os.urandom(POOL)
        high = bytes(0x3C | (b & 0x80) for b in range(256))  # bfloat16: 0.016 to 0.031, of both signs
        low = bytes(0x80 | b for b in range(256))
        words = bytearray(POOL)
        words[0::2] = pool[: POOL // 2].translate(low)
        words[1::2] = pool[POOL // 2 :].translate(high)
        self.pools = {Noise.BYTES: pool, Noise.VALUES: bytes(words)}

    def write(self, file, size, kind):
        pool = self.pools[kind]
        while size > 0:
            begin = int.from_bytes(os.urandom(4), "little") % (POOL // 2) // 64 * 64
            piece = pool[begin : begin + min(size, POOL // 2)]
            file.write(piece)
            size -= len(piece)


class File:
    """Tensors of one file: (name, dtype, shape, bytes or how to write them), those of wider elements first."""

    WIDTH = {"F32": 4, "BF16": 2, "U8": 1}

    def __init__(self):
        self.tensors = []

    def add(self, name, dtype, shape, content):
        self.tensors.append((name, dtype, shape, content))

    def write(self, path, noise):
        self.tensors.sort(key=lambda t: -self.WIDTH[t[1]])
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, _ in self.tensors:
            size = self.WIDTH[dtype]
            for n in shape:
                size *= n
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name, _, _, content in self.tensors:
                begin, end = header[name]["data_offsets"]
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    noise.write(file, end - begin, content)
        return at


def main():
    args = parse()
    with open(os.path.join(args.config, "config.json")) as file:
        config = json.load(file)
    config["num_hidden_layers"] = args.layers or config["num_hidden_layers"]
    config["torch_dtype"] = "bfloat16"
    with open(os.path.join(args.like, "config.json")) as file:
        config["quantization_config"] = json.load(file)["quantization_config"]
    quant_map, nested_map, state_suffix, state = tables_of(args.like)
    noise = Noise()
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or hidden // heads
    os.makedirs(args.output, exist_ok=True)

    def packed(file, name, rows, columns):
        numel = rows * columns
        blocks = -(-numel // NF4_BLOCK)
        nested = -(-blocks // NESTED_BLOCK)
        file.add(name, "U8", [(numel + 1) // 2, 1], Noise.BYTES)
        file.add(name + ".absmax", "U8", [blocks], Noise.BYTES)
        file.add(name + ".nested_absmax", "F32", [nested], struct.pack("<f", 0.02) * nested)
        file.add(name + ".quant_map", "F32", [16], quant_map)
        file.add(name + ".nested_quant_map", "F32", [256], nested_map)
        described = json.dumps({**state, "shape": [rows, columns], "nested_offset": 0.04}).encode()
        file.add(name + state_suffix, "U8", [len(described)], described)

    def ones(file, name):
        file.add(name, "BF16", [hidden], b"\x80\x3f" * hidden)

    weight_map, total = {}, 0

    def finish(file, name):
        nonlocal total
        total += file.write(os.path.join(args.output, name), noise)
        weight_map.update({t[0]: name for t in file.tensors})

    count = config["num_hidden_layers"]
    for i in range(count):
        file, at = File(), f"model.layers.{i}."
        packed(file, at + "self_attn.q_proj.weight", heads * dim, hidden)
        packed(file, at + "self_attn.k_proj.weight", key_heads * dim, hidden)
        packed(file, at + "self_attn.v_proj.weight", key_heads * dim, hidden)
        packed(file, at + "self_attn.o_proj.weight", hidden, heads * dim)
        packed(file, at + "mlp.gate_proj.weight", inner, hidden)
        packed(file, at + "mlp.up_proj.weight", inner, hidden)
        packed(file, at + "mlp.down_proj.weight", hidden, inner)
        ones(file, at + "input_layernorm.weight")
        ones(file, at + "post_attention_layernorm.weight")
        finish(file, f"model-{i + 1:05}-of-{count + 1:05}.safetensors")
    file = File()
    file.add("model.embed_tokens.weight", "BF16", [config["vocab_size"], hidden], Noise.VALUES)
    file.add("lm_head.weight", "BF16", [config["vocab_size"], hidden], Noise.VALUES)
    ones(file, "model.norm.weight")
    finish(file, f"model-{count + 1:05}-of-{count + 1:05}.safetensors")
    with open(os.path.join(args.output, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, out)
    with open(os.path.join(args.output, "config.json"), "w") as out:
        json.dump(config, out, indent=2)
    print(f"{count} blocks, {total / 1e9:.1f} GB in {args.output}")


if __name__ == "__main__":
    main()
