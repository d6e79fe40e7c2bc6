"""GPT-2: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"."""

import re

from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_plain_attention,
    check_sizes,
    head_size,
    layer_parts,
    token_ids,
    with_token_ids,
)
from keras_transformer.huggingface.tensors import dense, matrix, norm, plain
from keras_transformer.layers import (
    Decoder,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Residual,
)
from keras_transformer.models import LanguageModel

PREFIX = "transformer."
BUFFERS = (re.compile(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),)  # a causal mask
FREE = ()
DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}


def model(config, **kwargs):
    """The model that a configuration describes."""
    config = {**DEFAULTS, **config}
    check_config(
        config,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )
    vocab_size, d_model, num_layers, num_heads, max_length = check_sizes(
        config, "vocab_size", "n_embd", "n_layer", "n_head", "n_positions"
    )
    attention = MultiHeadAttention(
        num_heads,
        head_size(config, "n_embd", "n_head"),
        dropout=config["attn_pdrop"],
        scale=None if config["scale_attn_weights"] else 1.0,
    )
    feed_forward = FeedForward(config["n_inner"] or 4 * d_model, activation(config, "activation_function"))
    residual = Residual(
        config["resid_pdrop"], normalize_first=True, layer_norm_epsilon=config["layer_norm_epsilon"]
    )
    return LanguageModel(
        vocab_size,
        d_model,
        Decoder(num_layers, attention=attention, feed_forward=feed_forward, residual=residual),
        LearnedPositions(max_length),
        dropout=config["embd_pdrop"],
        tie_embeddings=config["tie_word_embeddings"],
        **with_token_ids(config, **kwargs),
    )


def config(model):
    """The configuration that describes a model."""
    check_parts("gpt2", model=(model, LanguageModel))
    check_parts("gpt2", positions=(model.positions, LearnedPositions), decoder=(model.decoder, Decoder))
    attention, feed_forward, residual = layer_parts("gpt2", model.decoder, normalize_first=True)
    check_plain_attention("gpt2", attention, model.d_model, unscaled=True)
    check_parts("gpt2", feed_forward_bias=(feed_forward.use_bias, True))
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": model.vocab_size,
        "n_positions": model.positions.max_length,
        "n_embd": model.d_model,
        "n_layer": model.decoder.num_layers,
        "n_head": attention.num_heads,
        "n_inner": feed_forward.d_ff,
        "activation_function": activation_name("gpt2", feed_forward),
        "resid_pdrop": residual.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": attention.dropout,
        "layer_norm_epsilon": residual.norm.epsilon,
        "scale_attn_weights": attention.scale != 1.0,
        "tie_word_embeddings": model.tie_embeddings,
        **token_ids(model),
    }


def tensors(model):
    """The tensors of its checkpoints; matrices are `(inputs, outputs)`, and one holds queries, keys and values."""
    yield matrix("transformer.wte.weight", model.token_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    yield matrix("transformer.wpe.weight", model.positions.embeddings)
    for i, layer in enumerate(model.decoder.layers):
        name, attention, feed_forward = f"transformer.h.{i}", layer.self_attention, layer.feed_forward
        yield from norm(f"{name}.ln_1", layer.self_attention_residual.norm)
        yield from dense(
            f"{name}.attn.c_attn",
            attention.query_weights,
            attention.key_weights,
            attention.value_weights,
            transposed=False,
        )
        yield from dense(f"{name}.attn.c_proj", attention.output_weights, inputs=2, transposed=False)
        yield from norm(f"{name}.ln_2", layer.feed_forward_residual.norm)
        for part, own in (("c_fc", feed_forward.inner), ("c_proj", feed_forward.outer)):
            yield from plain(f"{name}.mlp.{part}", own, transposed=False)
    yield from norm("transformer.ln_f", model.decoder.norm)
