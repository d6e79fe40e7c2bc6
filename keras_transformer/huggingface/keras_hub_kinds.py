"""The backbones of KerasHub that become models of this library, and the config.json of each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checks import check

# The attributes that most backbones have.
ATTRIBUTES = (
    *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
    *("dropout", "max_sequence_length"),
)


def _keys(*names):
    """Returns the attribute for each key of config.json, a dict, from the keys of each of `ATTRIBUTES`."""
    pairs = zip(ATTRIBUTES, names, strict=False)
    return {key: attribute for attribute, keys in pairs for key in keys.split()}


ENCODER = _keys(
    *("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
    *("hidden_dropout_prob attention_probs_dropout_prob", "max_position_embeddings"),
)
GPT2 = _keys(
    *("vocab_size", "n_layer", "n_head", "n_embd", "n_inner", "resid_pdrop embd_pdrop attn_pdrop"),
    "n_positions",
)
DISTILBERT = _keys(
    *("vocab_size", "n_layers", "n_heads", "dim", "hidden_dim", "dropout attention_dropout"),
    "max_position_embeddings",
)
BART = _keys(
    *("vocab_size", "encoder_layers decoder_layers", "encoder_attention_heads decoder_attention_heads"),
    *("d_model", "encoder_ffn_dim decoder_ffn_dim", "dropout attention_dropout", "max_position_embeddings"),
)
DECODER = {
    **_keys(*list(ENCODER)[:5], "attention_dropout"),
    "num_attention_heads": "num_query_heads",
    "num_key_value_heads": "num_key_value_heads",
    "rms_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rope_max_wavelength",
}


def query_scalar(backbone):
    """Returns what the root of divides Gemma's queries. KerasHub 0.32 does not hand the option of a backbone on."""
    by_head = backbone.transformer_layers[0].attention.query_head_dim_normalize
    return backbone.head_dim if by_head else backbone.hidden_dim / backbone.num_query_heads


GEMMA = {
    **{key: attribute for key, attribute in DECODER.items() if key != "rope_theta"},
    "intermediate_size": lambda backbone: backbone.intermediate_dim // 2,
    "head_dim": "head_dim",
}
GEMMA2 = {
    **GEMMA,
    "query_pre_attn_scalar": query_scalar,
    "final_logit_softcapping": "final_logit_soft_cap",
    "attn_logit_softcapping": "attention_logit_soft_cap",
    "sliding_window": "sliding_window_size",
}
GEMMA3 = {**GEMMA2, "intermediate_size": "intermediate_dim"}
del GEMMA3["attn_logit_softcapping"]
# What a backbone of each Gemma must have.
GEMMA_HAS = {
    "use_post_ffw_norm": False,
    "use_post_attention_norm": False,
    "use_sliding_window_attention": False,
    "attention_logit_soft_cap": None,
    "final_logit_soft_cap": None,
}
GEMMA2_HAS = {name: True for name, value in GEMMA_HAS.items() if value is False}
GEMMA3_HAS = {
    **GEMMA2_HAS,
    "use_query_key_norm": True,
    "use_bidirectional_attention": False,
    "attention_logit_soft_cap": None,
    "vision_encoder": None,
    "local_rope_scaling_factor": 1.0,
}


def _gemma3_ropes(backbone):
    """Returns the wavelengths of Gemma 3, whose layers without a window may stretch their positions."""
    factors = {
        each.rope_scaling_factor
        for each in backbone.transformer_layers
        if not each.use_sliding_window_attention
    }
    factor = max(factors, default=1.0)
    scaled = {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
    local = {"rope_type": "default", "rope_theta": 10_000.0}
    return {"full_attention": {**scaled, "rope_theta": 1_000_000.0}, "sliding_attention": local}


BART_FIXED = {
    "activation_function": "gelu",
    "scale_embedding": False,
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
}


def _t5_feed_forward(backbone):
    """Returns the name of transformers for the feed-forward networks of T5."""
    name = backbone.activation.__name__
    if not backbone.use_gated_activation:
        return name
    rule = "`activation` of gated networks must be `gelu_approximate`, `silu` or `relu`: transformers has no other."
    check(name in ("gelu_approximate", "silu", "relu"), rule, activation=name)
    return "gated-gelu" if name == "gelu_approximate" else f"gated-{name}"


T5 = {
    **_keys("vocab_size", "num_layers num_decoder_layers", "num_heads", "d_model", "d_ff", "dropout_rate"),
    "d_kv": lambda backbone: backbone.key_value_dim or backbone.hidden_dim // backbone.num_heads,
    "layer_norm_epsilon": "layer_norm_epsilon",
    "tie_word_embeddings": "tie_embedding_weights",
    "feed_forward_proj": _t5_feed_forward,
}


def _port_t5(backbone, places, config):
    """Gives the variables of a T5 the names of their tensors: KerasHub has no reader of such checkpoints."""

    def turned(variable, name):
        places.port_weight(variable, f"{name}.weight", lambda tensor, _: np.transpose(tensor))

    tokens = backbone.token_embedding
    places.port_weight(tokens.embeddings, "shared.weight")
    if not backbone.tie_embedding_weights:
        turned(tokens.reverse_embeddings, "lm_head")
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(backbone, f"{stack}_transformer_layers")):
            sublayers = [("SelfAttention", layer.self_attention, layer.self_attention_layer_norm)]
            if stack == "decoder":
                sublayers.append(("EncDecAttention", layer.cross_attention, layer.cross_attention_layer_norm))
            for place, (kind, attention, norm) in enumerate(sublayers):
                base = f"{stack}.block.{i}.layer.{place}"
                for letter, name in zip("qkvo", ("query", "key", "value", "output"), strict=True):
                    turned(getattr(attention, f"{name}_projector").kernel, f"{base}.{kind}.{letter}")
                places.port_weight(norm.weight, f"{base}.layer_norm.weight")
            base = f"{stack}.block.{i}.layer.{len(sublayers)}"
            if i == 0:
                name = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
                places.port_weight(layer.self_attention.relative_attention_bias, name)
            inner = {"wi_0": "input", "wi_1": "gate"} if backbone.use_gated_activation else {"wi": "input"}
            for name, attribute in {**inner, "wo": "output"}.items():
                turned(getattr(layer, f"{attribute}_projector").kernel, f"{base}.DenseReluDense.{name}")
            places.port_weight(layer.layer_norm.weight, f"{base}.layer_norm.weight")
        norm = getattr(backbone, f"{stack}_layer_norm")
        places.port_weight(norm.weight, f"{stack}.final_layer_norm.weight")


class Kind(NamedTuple):
    """A backbone of KerasHub.

    model_type: The `model_type` of transformers.
    converter: Name of the module of KerasHub that reads the checkpoints of transformers, or a function like its
        `convert_weights`.
    keys: A dict from a key of config.json to the attribute of the backbone, or to a function of the backbone.
    fixed: The other keys, a dict.
    has: The attributes that must have one value, a dict.
    """

    model_type: str
    converter: Any
    keys: dict
    fixed: dict
    has: Mapping = MappingProxyType({})


# KerasHub has one class for Gemma 1 and 2. Gemma 2 has norms after its sublayers.
GEMMA2_BACKBONE = "GemmaBackbone (2)"


def _roberta(model_type, converter):
    fixed = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
    return Kind(model_type, converter, ENCODER, fixed)


KINDS = {
    "GPT2Backbone": Kind(
        "gpt2", "gpt2", GPT2, {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    ),
    "LlamaBackbone": Kind("llama", "llama3", DECODER, {}),
    "Llama3Backbone": Kind("llama", "llama3", DECODER, {}),
    "MistralBackbone": Kind("mistral", "mistral", {**DECODER, "sliding_window": "sliding_window"}, {}),
    "QwenBackbone": Kind("qwen2", "qwen", DECODER, {}),
    "GemmaBackbone": Kind("gemma", "gemma", GEMMA, {"hidden_act": "gelu_pytorch_tanh"}, GEMMA_HAS),
    GEMMA2_BACKBONE: Kind(
        "gemma2",
        "gemma",
        GEMMA2,
        {"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0},
        GEMMA2_HAS,
    ),
    "Gemma3Backbone": Kind(
        "gemma3_text",
        "gemma3",
        {**GEMMA3, "rope_parameters": _gemma3_ropes},
        {"hidden_activation": "gelu_pytorch_tanh"},
        GEMMA3_HAS,
    ),
    "BertBackbone": Kind(
        "bert",
        "bert",
        {**ENCODER, "type_vocab_size": "num_segments"},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12},
    ),
    "RobertaBackbone": _roberta("roberta", "roberta"),
    "XLMRobertaBackbone": _roberta("xlm-roberta", "xlm_roberta"),
    "DistilBertBackbone": Kind("distilbert", "distilbert", DISTILBERT, {"activation": "gelu"}),
    "BartBackbone": Kind("bart", "bart", BART, BART_FIXED),
    "T5Backbone": Kind(
        "t5", _port_t5, T5, {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    ),
}
