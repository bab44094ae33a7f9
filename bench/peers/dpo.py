#!/usr/bin/env python3
"""TRL's DPOTrainer with PEFT and Accelerate on CPU ranks: pairs of texts, LoRA on all linear layers, the adapter off as reference.

    pip install -r bench/peers/requirements.txt
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 bench/peers/dpo.py --model FOLDER --data pairs.jsonl --steps 5 --out metrics.jsonl

On CPU ranks this stack runs as plain data parallelism, whatever its FSDP settings say. Rank 0 appends one JSON line a step.
"""

import argparse
import json
import os
import tempfile
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="JSON Lines with prompt, chosen, rejected")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds, self.end = time.perf_counter() - self.begin, time.time()

        def on_log(self, _args, state, control, logs=None, **__):
            if state.is_world_process_zero and logs and "loss" in logs:
                with open(args.out, "a") as f:
                    line = {"step": state.global_step, "loss": logs["loss"], "step_seconds": self.seconds, "time": self.end}
                    f.write(json.dumps(line) + "\n")

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = load_dataset("json", data_files=args.data, split="train", cache_dir=tempfile.mkdtemp())
    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(
            output_dir=os.path.join(folder, "out"), per_device_train_batch_size=args.batch, max_steps=args.steps, learning_rate=1e-4,
            logging_steps=1, report_to="none", save_strategy="no", use_cpu=True, gradient_checkpointing=False,
            bf16=args.precision == "bf16", model_init_kwargs={"dtype": "float32"},
        )
        lora = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
        trainer = DPOTrainer(args.model, args=config, train_dataset=rows, processing_class=tokenizer, peft_config=lora, callbacks=[Clock()])
        trainer.train()


if __name__ == "__main__":
    main()
