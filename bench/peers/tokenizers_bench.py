"""The measurements of bench/micro/tokenizer_bench.cc with the Python package `tokenizers`, on one thread (seconds of
the processor):

    python bench/peers/tokenizers_bench.py TEXT_FILE TOKENIZER...

A TOKENIZER is a tokenizer.json, a folder that holds one, or a folder that transformers opens.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def open_tokenizer(path):
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if os.path.exists(file):
        from tokenizers import Tokenizer

        return Tokenizer.from_file(file)
    from transformers import AutoTokenizer, GPT2TokenizerFast

    if os.path.exists(os.path.join(path, "merges.txt")):
        return GPT2TokenizerFast.from_pretrained(path).backend_tokenizer
    return AutoTokenizer.from_pretrained(path, use_fast=True).backend_tokenizer


def best_seconds(run):
    best, start, passes = 1e9, time.process_time(), 0
    while passes < 3 or time.process_time() - start < 2:
        begin = time.process_time()
        result = run()
        best = min(best, time.process_time() - begin)
        passes += 1
    return best, result


def main():
    data = open(sys.argv[1], encoding="utf-8", newline="\n").read()
    size = len(data.encode())
    rows = data.split("\n")
    if rows[-1] == "":
        rows.pop()
    for path in sys.argv[2:]:
        begin = time.process_time()
        tokenizer = open_tokenizer(path)
        load = time.process_time() - begin
        one, encodings = best_seconds(lambda: [tokenizer.encode(row) for row in rows])
        batch, encodings = best_seconds(lambda: tokenizer.encode_batch(rows))
        ids = [e.ids for e in encodings]
        decode, _ = best_seconds(lambda: tokenizer.decode_batch(ids, skip_special_tokens=False))
        print(json.dumps({"tokenizer": path, "load_s": round(load, 3), "encode_mb_s": round(size / min(one, batch) / 1e6, 2),
                          "decode_mb_s": round(size / decode / 1e6, 2), "tokens": sum(len(i) for i in ids)}))


if __name__ == "__main__":
    main()
