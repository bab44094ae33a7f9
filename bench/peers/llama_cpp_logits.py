"""Exports model folders as GGUF and holds llama.cpp's logits against transformers'.

    python llama_cpp_logits.py build/release/tessera MODEL_DIR [MODEL_DIR...]

Needs llama-cpp-python beside requirements.txt (this was run with 0.3.36). llama.cpp keeps keys and values in float16, and takes Phi-3's long
factors as soon as its context is longer than the original one; rows here are as long as that, plus one.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from llama_cpp import Llama


def compare(tessera: str, folder: str, out: pathlib.Path) -> bool:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rows = max(24, (getattr(model.config, "original_max_position_embeddings", None) or 0) + 1)
    ids = torch.randint(3, model.config.vocab_size, (rows,), generator=torch.Generator().manual_seed(5)).tolist()
    subprocess.run([tessera, "export", folder, str(out), "--gguf", "f32", "--overwrite_output_dir"], check=True, stdout=subprocess.DEVNULL)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    reader = Llama(str(out), n_ctx=rows, logits_all=True, verbose=False)
    reader.eval(ids)
    found = numpy.array(reader.scores[:rows, : expected.shape[1]])
    error, scale = numpy.abs(found - expected).max(), numpy.abs(expected).max()
    print(f"{folder}: largest difference {error:.1e} of logits up to {scale:.1f}", flush=True)
    return bool(error < 5e-3 * max(scale, 1.0))


with tempfile.TemporaryDirectory() as scratch:
    file = pathlib.Path(scratch) / "model.gguf"  # llama.cpp treats some models by their names
    results = [compare(sys.argv[1], folder, file) for folder in sys.argv[2:]]
sys.exit(0 if results and all(results) else 1)
