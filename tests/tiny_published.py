"""Tiny random models of transformers' own classes, and the bytes that their real caches hold."""

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

# Awkward sizes: no two that could be swapped are equal. Each model type takes those that it has.
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 7,
    "intermediate_size": 40,
    "intermediate_size_mlp": 40,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "ffn_hidden_size": 40,
    "ffn_dim": 40,
    "word_embed_proj_dim": 48,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 20,
    "q_lora_rank": 18,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "index_head_dim": 14,
    "index_n_heads": 3,
    "index_topk": 5,
    "o_lora_rank": 10,
    "o_groups": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 89,
    "laurel_rank": 4,
    "rotary_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "vocab_size": 89,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention"] * 2
OF_ONE_TYPE = {
    **{name: {"head_dim": 8} for name in ("granite", "helium", "glm")},
    **{
        name: {"num_key_value_heads": 6, "head_dim": 8}
        for name in (
            "axk1",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "longcat_flash",
            "minicpm3",
            "youtu",
        )
    },
    "llama4_text": {"attention_chunk_size": 7, "layer_types": ["chunked_attention", "full_attention"] * 2},
    "gemma3_text": {"layer_types": MIXED},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": MIXED,
        "intermediate_size": [40] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    **{
        name: {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 2,
            "layer_types": MIXED,
        }
        for name in ("gemma4_text", "gemma4_unified_text")
    },
    "deepseek_v4": {
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "sliding_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 5},
    },
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"] * 2},
}


def tiny_config(model_type: str, **others) -> dict:
    """A configuration as JSON holds it, of four layers, with the sizes above that the type has."""
    defaults = CONFIG_MAPPING[model_type]()
    has = {*defaults.to_dict(), *defaults.attribute_map}
    sizes = {name: value for name, value in SIZES.items() if name in has}
    if getattr(defaults, "layer_types", None):
        sizes["layer_types"] = defaults.layer_types[:4]
    config = CONFIG_MAPPING[model_type].from_dict(
        {"model_type": model_type, **sizes, **OF_ONE_TYPE.get(model_type, {}), **others}
    )
    return config.to_dict()


def cached(config: dict, tokens: int, batch: int = 2, dtype: torch.dtype = torch.float32):
    """The cache of a random model after all but one of the tokens at once, and then that one."""
    built: PreTrainedConfig = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    model = AutoModelForCausalLM.from_config(built, dtype=dtype).eval()
    ids = torch.randint(3, built.vocab_size, (batch, tokens))
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).cache
        return model(ids[:, -1:], cache=cache, use_cache=True).cache


def storage_bytes(cache) -> int:
    """Bytes of all storages under a cache's layers, each counted once."""
    storages: dict[int, int] = {}
    for layer in cache.layers:
        for name, value in vars(layer).items():
            # The layer's window is an integer on the device, and no cached number.
            if name != "_sliding_window_tensor":
                storages |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(value)}
    return sum(storages.values())


def shape_bytes(cache) -> int:
    """Bytes of all tensors under a cache's layers by their shapes, a tensor that two names hold once."""
    tensors = {}
    for layer in cache.layers:
        for name, value in vars(layer).items():
            if name != "_sliding_window_tensor":
                tensors |= {id(t): t.nbytes for t in _tensors(value)}
    return sum(tensors.values())


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value.values() for t in _tensors(part)] if isinstance(value, dict) else []
