"""Exports model folders as GGUF and holds llama.cpp's logits against transformers'.

    python llama_cpp_logits.py build/release/tessera MODEL_DIR [MODEL_DIR...]

Of T5 the head's scaling, which llama.cpp leaves out where it is tied, is made up for. Needs llama-cpp-python beside requirements.txt (this was run with 0.3.36). llama.cpp keeps keys and values in float16, and takes Phi-3's long
factors as soon as its context is longer than the original one; rows here are as long as that, plus one.
"""

import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
import numpy
import torch
import transformers
from llama_cpp import Llama


def filled(ids: list[int]) -> llama_cpp.llama_batch:
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    return batch


def decoded(reader: Llama, encoder_ids: list[int], ids: list[int]) -> numpy.ndarray:
    """An encoder's and decoder's logits, which llama-cpp-python has no method for."""
    context = reader.ctx
    assert llama_cpp.llama_encode(context, filled(encoder_ids)) == 0 and llama_cpp.llama_decode(context, filled(ids)) == 0
    size = reader.n_vocab()
    return numpy.array([numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (size,)).copy() for i in range(len(ids))])


def compare(tessera: str, folder: str, out: pathlib.Path) -> bool:
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rows = max(24, (getattr(config, "original_max_position_embeddings", None) or 0) + 1)
    ids = torch.randint(3, config.vocab_size, (rows,), generator=torch.Generator().manual_seed(5)).tolist()
    subprocess.run([tessera, "export", folder, str(out), "--gguf", "f32", "--overwrite_output_dir"], check=True, stdout=subprocess.DEVNULL)
    reader = Llama(str(out), n_ctx=rows, logits_all=True, verbose=False)
    if config.is_encoder_decoder:
        decoder_ids = [config.decoder_start_token_id] + ids[:7]
        with torch.no_grad():
            expected = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([decoder_ids])).logits[0].numpy()
        found = decoded(reader, ids, decoder_ids) * (config.d_model**-0.5 if config.tie_word_embeddings else 1)
    else:
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].numpy()
        reader.eval(ids)
        found = numpy.array(reader.scores[:rows, : expected.shape[1]])
    error, scale = numpy.abs(found - expected).max(), numpy.abs(expected).max()
    print(f"{folder}: largest difference {error:.1e} of logits up to {scale:.1f}", flush=True)
    return bool(error < 5e-3 * max(scale, 1.0))


with tempfile.TemporaryDirectory() as scratch:
    file = pathlib.Path(scratch) / "model.gguf"  # llama.cpp treats some models by their names
    results = [compare(sys.argv[1], folder, file) for folder in sys.argv[2:]]
sys.exit(0 if results and all(results) else 1)
