"""Makes <family>.gguf and <family>.safetensors: tiny random models of transformers, and what llama.cpp's converter makes of them.

    python make_families.py LLAMA_CPP OUT [FAMILY...]

LLAMA_CPP: a folder of llama.cpp's sources (convert_hf_to_gguf.py, conversion/, gguf-py/). Vocabularies are left out.
"""

import json
import pathlib
import sys
import tempfile

llama_cpp, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]

import gguf  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

SIZES = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64)
WHOLE = SIZES | dict(num_key_value_heads=4, pad_token_id=0, eos_token_id=2, bos_token_id=1)
GPT = dict(vocab_size=24, hidden_size=16, n_layer=2, n_head=4)
BERT = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
HEADS = {"T5": "ForConditionalGeneration", "Bert": "ForMaskedLM", "Roberta": "ForSequenceClassification"}
T5 = dict(vocab_size=24, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=4, relative_attention_num_buckets=8,
          n_positions=64, decoder_start_token_id=0)
FACTORS = dict(short_factor=[1.0, 1.5], long_factor=[2.0, 3.0])
FAMILIES = {
    "llama": ("Llama", SIZES | dict(rope_theta=5000.0)),
    "llama3": ("Llama", SIZES | dict(rope_theta=5e5, head_dim=8, attention_bias=True, mlp_bias=True, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192))),
    "mistral": ("Mistral", SIZES | dict(sliding_window=None)),
    "mixtral": ("Mixtral", SIZES | dict(num_local_experts=3, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": ("Qwen2", SIZES | dict(tie_word_embeddings=True, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    "qwen3": ("Qwen3", SIZES | dict(head_dim=8)),
    "qwen3moe": ("Qwen3Moe", SIZES | dict(head_dim=8, moe_intermediate_size=12, num_experts=3, num_experts_per_tok=2,
                                          norm_topk_prob=True)),
    "gemma": ("Gemma", SIZES | dict(head_dim=8)),
    "gemma2": ("Gemma2", SIZES | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=6)),
    "gemma3": ("Gemma3Text", SIZES | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=6, num_hidden_layers=7)),
    "granite": ("Granite", SIZES | dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3,
                                        logits_scaling=2.0)),
    "smollm3": ("SmolLM3", SIZES | dict(num_hidden_layers=5, pad_token_id=0)),
    "olmo2": ("Olmo2", SIZES),
    "starcoder2": ("Starcoder2", SIZES | dict(use_bias=True)),
    "phi3": ("Phi3", SIZES | dict(pad_token_id=0, original_max_position_embeddings=64)),
    "phi3_long": ("Phi3", SIZES | dict(pad_token_id=0, original_max_position_embeddings=16,
                                       rope_scaling=dict(type="longrope", **FACTORS))),
    "gpt2": ("GPT2", dict(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=64, n_ctx=64)),
    "gptneox": ("GPTNeoX", dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                                max_position_embeddings=64, rotary_pct=0.5)),
    "bloom": ("Bloom", GPT),
    "falcon": ("Falcon", dict(vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=1)),
    "falcon_two_norms": ("Falcon", dict(vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
                                        new_decoder_architecture=True)),
    "phi2": ("Phi", WHOLE | dict(intermediate_size=64, rope_theta=10000.0)),
    "stablelm": ("StableLm", WHOLE | dict(use_qkv_bias=True, partial_rotary_factor=0.5)),
    "stablelm_parallel": ("StableLm", WHOLE | dict(use_parallel_residual=True, partial_rotary_factor=0.5)),
    "olmo": ("Olmo", WHOLE | dict(clip_qkv=0.5)),
    "olmoe": ("Olmoe", WHOLE | dict(num_experts=3, num_experts_per_tok=2)),
    # the converter takes hidden_size for the longest row, and 1e-5 and 10,000 for what config.json says
    "chatglm": ("Glm", SIZES | dict(head_dim=4, attention_bias=True, max_position_embeddings=16, rms_norm_eps=1e-5, pad_token_id=0)),
    "glm4": ("Glm4", SIZES | dict(head_dim=8, attention_bias=True, pad_token_id=0)),
    "starcoder": ("GPTBigCode", dict(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=64)),
    "bert": ("Bert", BERT),
    "roberta": ("Roberta", BERT | dict(pad_token_id=1, id2label={0: "good", 1: "bad", 2: "neither"})),
    "t5": ("T5", T5 | dict(feed_forward_proj="relu")),
    "t5_gated": ("T5", T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=3)),
}


def make(family: str) -> None:
    name, sizes = FAMILIES[family]
    torch.manual_seed(11)
    config = getattr(transformers, name + "Config")(**sizes, attn_implementation="eager")
    architecture = "Gemma3ForCausalLM" if name == "Gemma3Text" else "GPT2LMHeadModel" if name == "GPT2" else \
        name + HEADS.get(name, "ForCausalLM")
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():  # norms and biases are not all the same
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.2 * torch.randn_like(parameter)).half().float())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        hparams = ModelBase.load_hparams(pathlib.Path(folder), False)
        model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        model_class.set_vocab = lambda self: None
        if name == "Gemma3Text":  # its rows of no token are cut, by a vocabulary that is not here
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(
                {"model": {"vocab": {str(i): i for i in range(24)}}, "added_tokens": []}))
        with torch.inference_mode():
            model_class(pathlib.Path(folder), gguf.LlamaFileType.MOSTLY_F16, out / f"{family}.gguf", use_temp_file=False, eager=True).write()
        stored = json.loads((pathlib.Path(folder) / "config.json").read_text())
    ids = torch.arange(20).reshape(2, 10) % 24
    with torch.no_grad():
        logits = model(ids, labels=ids[:, :6].contiguous()).logits if name == "T5" else model(ids).logits
    state = {k: v.half().contiguous() for k, v in model.state_dict().items() if not (stored.get("tie_word_embeddings", True) and k == "lm_head.weight")}
    if name == "Bert":  # the encoder alone
        state = {k.removeprefix("bert."): v for k, v in state.items() if not k.startswith("cls.")}
    tied = model.get_output_embeddings() is not None and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if tied:
        state = {k: v for k, v in state.items() if k not in ("lm_head.weight", "embed_out.weight")}
    state = {k: v for k, v in state.items() if not k.endswith("coder.embed_tokens.weight")}
    save_file(state | {"logits": logits.contiguous()}, out / f"{family}.safetensors",
              metadata={"config": json.dumps(stored | {"tie_word_embeddings": tied})})


for family in sys.argv[3:] or FAMILIES:
    make(family)
