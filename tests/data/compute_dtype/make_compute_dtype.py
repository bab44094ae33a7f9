"""logits.safetensors: of goldens/C_quant/base_llama in float32, its linear layers in NF4 whose products compute in bfloat16.

transformers 4.57.3, bitsandbytes 0.50.2, torch 2.13 on a CPU:   make_compute_dtype.py, in this folder
"""
import bitsandbytes as bnb
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

bnb.nn.modules.has_avx512bf16 = lambda: False  # else evaluation repacks the weights on some processors
folder = "../goldens/C_quant/base_llama"
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map={"": "cpu"}, dtype=torch.float32,
                                             attn_implementation="eager").eval()
with torch.no_grad():
    save_file({"logits": model(**load_file(folder + "/batch.safetensors")).logits.contiguous()}, "logits.safetensors")
