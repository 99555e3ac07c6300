"""Makes the folder of a Hugging Face model from the GGUF file of SmolLM2-135M-Instruct.

    python3 scripts/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf FOLDER

The weights of 4 bits become f32. llama.cpp stores rows of queries and keys with the two values of a rotary pair side by side; Hugging Face
has one half of a head behind the other.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def halves(weight, heads):
    """The rows of each head, with the first values of all pairs before the second ones."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main(source, folder):
    reader = gguf.GGUFReader(source)
    value = lambda key: reader.fields[key].contents()
    heads, key_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in NAMES:
            tensors[NAMES[tensor.name]] = weight
            continue
        _, block, name = tensor.name.split(".", 2)
        if name == "attn_q.weight":
            weight = halves(weight, heads)
        if name == "attn_k.weight":
            weight = halves(weight, key_heads)
        tensors[f"model.layers.{block}.{NAMES[name]}"] = np.ascontiguousarray(weight)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def write(name, content):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    ends = {key: value(f"tokenizer.ggml.{key}_token_id") for key in ["bos", "eos", "padding"]}
    write("config.json", {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": round(value("llama.attention.layer_norm_rms_epsilon"), 8),
        "rope_theta": value("llama.rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": ends["bos"],
        "eos_token_id": ends["eos"],
        "pad_token_id": ends["padding"],
    })
    special = [{"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for id, (token, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write("tokenizer.json", {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: id for id, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in value("tokenizer.ggml.merges")]},
    })
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ends["bos"]],
        "eos_token": tokens[ends["eos"]],
        "pad_token": tokens[ends["padding"]],
        "model_max_length": value("llama.context_length"),
        "chat_template": value("tokenizer.chat_template"),
    })


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
