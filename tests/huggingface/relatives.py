"""Small configurations of the families of decoders and encoder-decoders that share their description."""

from families import LINEAR, LLAMA, MARIAN

SIZES = {key: value for key, value in LLAMA.items() if key != "model_type"}
GEMMA = {
    **{key: value for key, value in SIZES.items() if key != "hidden_act"},
    "pad_token_id": 0,
    "sliding_window": 4,
    "query_pre_attn_scalar": 7,
}
PHI = {key: value for key, value in SIZES.items() if key != "head_dim"} | {
    "hidden_size": 24,
    "pad_token_id": 0,
}
LOCAL = ["sliding_attention", "full_attention"]
DECODERS = {
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 4},
    "mistral-whole": {"model_type": "mistral", **SIZES, "sliding_window": None, "tie_word_embeddings": True},
    "mistral-odd": {
        "model_type": "mistral",
        **SIZES,
        "num_key_value_heads": 1,
        "sliding_window": 1,
        "head_dim": 4,
    },
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen2-tied": {
        "model_type": "qwen2",
        **SIZES,
        "tie_word_embeddings": True,
        "num_key_value_heads": 6,
    },
    "qwen2-windows": {
        "model_type": "qwen2",
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **SIZES},
    "qwen3-biases": {"model_type": "qwen3", **SIZES, "attention_bias": True, "tie_word_embeddings": True},
    "qwen3-linear": {"model_type": "qwen3", **SIZES, "rope_parameters": LINEAR, "num_key_value_heads": 1},
    "phi3": {"model_type": "phi3", **PHI},
    "phi3-window": {
        "model_type": "phi3",
        **PHI,
        "sliding_window": 5,
    },
    "phi3-tied": {
        "model_type": "phi3",
        **PHI,
        "hidden_size": 12,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
    },
    "gemma2": {"model_type": "gemma2", **GEMMA},
    "gemma2-without-caps": {
        "model_type": "gemma2",
        **GEMMA,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "tie_word_embeddings": False,
    },
    "gemma2-small-caps": {
        "model_type": "gemma2",
        **GEMMA,
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 2.0,
        "layer_types": LOCAL[::-1],
    },
    "gemma3_text": {"model_type": "gemma3_text", **GEMMA, "layer_types": LOCAL},
    "gemma3_text-local": {
        "model_type": "gemma3_text",
        **GEMMA,
        "num_key_value_heads": 6,
        "query_pre_attn_scalar": 10,
    },
    "gemma3_text-linear": {
        "model_type": "gemma3_text",
        **GEMMA,
        "layer_types": LOCAL,
        "rope_parameters": {
            "full_attention": LINEAR,
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
}
BART = {
    **{key: value for key, value in MARIAN.items() if key not in ("model_type", "scale_embedding")},
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "decoder_start_token_id": 2,
    "max_position_embeddings": 23,
}
UNEVEN = {"encoder_ffn_dim": 7, "decoder_attention_heads": 9, "encoder_layers": 1, "decoder_layers": 3}
ENCODER_DECODERS = {
    f"{model_type}{name}": {"model_type": model_type, **BART, **changes}
    for model_type in ("bart", "mbart", "m2m_100", "pegasus")
    for name, changes in {
        "": {},
        "-scaled": {"scale_embedding": True, "activation_function": "gelu"},
        "-uneven": {**UNEVEN, "scale_embedding": False, "activation_function": "relu"},
    }.items()
}
