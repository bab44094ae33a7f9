"""transformers (and PEFT, bitsandbytes) in the place of train_bench: one row of bench/gpu/run.sh bench, its last line is JSON.

    python3 bench/gpu/peers.py --model FOLDER --batch 8 --length 2048 --steps 6 [--lora_r 16] [--load_in_4bit] [--activation_checkpointing]

As Trainer does with bf16=True: autocast to bf16. Where all weights are trained they are loaded in fp32; under LoRA the base is loaded in
bf16 (or NF4) and PEFT keeps the adapter in fp32. Scaled dot product attention, fused AdamW, gradients clipped to 1. Trainer's copy of
the logits in fp32 is left out. Weights, tokens and steps are those of train_bench, and every token but a row's first has a loss.
"""

import argparse
import importlib.util
import json
import os
import statistics
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="the second half of them is measured")
    parser.add_argument("--lora_r", type=int, default=0, help="of an adapter of all linear layers; without it all weights are trained")
    parser.add_argument("--load_in_4bit", action="store_true")
    parser.add_argument("--activation_checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def missing(args):
    names = ["torch", "transformers", "accelerate", *(["peft"] if args.lora_r else []), *(["bitsandbytes"] if args.load_in_4bit else [])]
    return [name for name in names if importlib.util.find_spec(name) is None]


def load(args):
    import torch
    from transformers import AutoModelForCausalLM

    more = {}
    if args.load_in_4bit:
        from transformers import BitsAndBytesConfig

        more["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16 if args.lora_r else torch.float32,
                                                 attn_implementation="sdpa", device_map={"": args.device}, **more)
    model.config.use_cache = False
    if args.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if args.lora_r:
        from peft import LoraConfig, get_peft_model

        # train_bench's alpha.
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=args.lora_r, lora_alpha=32, lora_dropout=0.0,
                                                 target_modules="all-linear"))
    return model.train()


def train(args):
    import torch

    torch.manual_seed(0)
    model = load(args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)
    # train_bench's made_up_rows.
    rows = (torch.arange(64 * args.length) * 7919 % model.config.vocab_size).view(64, args.length).to(args.device)
    losses, seconds = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        ids = rows[torch.arange(step * args.batch, (step + 1) * args.batch, device=args.device) % 64]
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(round(loss.item(), 6))  # waits for the device
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() / 1e9 if args.device == "cuda" else None
    rate = args.batch * args.length / statistics.median(seconds[len(seconds) // 2:])
    return {"tokens_s": round(rate, 1), "peak_gb": peak, "losses": losses}


def main():
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    args = parse()
    if missing(args):
        return {"cannot_run": f"this Python has no {', '.join(missing(args))}"}
    import torch

    try:
        return train(args)
    except torch.cuda.OutOfMemoryError as e:
        return {"cannot_run": f"out of the device's memory: {str(e).splitlines()[0]}"}


if __name__ == "__main__":
    print(json.dumps(main()))
