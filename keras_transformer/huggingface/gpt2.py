"""GPT-2: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"."""

import re

from keras_transformer.huggingface.byte_pair import read_byte_pair, write_byte_pair
from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    check_config,
    check_divisible,
    check_layers,
    check_parts,
    check_plain_attention,
    sizes_of,
    token_id_keys,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.tensors import dense, matrix, norm
from keras_transformer.huggingface.tokenizers import TokenizerKind, check_tokenizers
from keras_transformer.layers import Decoder, DecoderLayer, LearnedPositions, MultiHeadAttention
from keras_transformer.models import LanguageModel

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


def make_model(config, **kwargs):
    """Makes the model that a config.json describes."""
    config = {**DEFAULTS, **config}
    check_config(
        config,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )
    vocab_size, d_model, num_layers, max_length = sizes_of(
        config, "vocab_size", "n_embd", "n_layer", "n_positions"
    )
    dtype = kwargs.get("dtype")
    layers = [_layer(config, dtype, f"layer_{i}") for i in range(num_layers)]
    return LanguageModel(
        vocab_size,
        d_model,
        Decoder(layers, dtype=dtype, name="decoder"),
        LearnedPositions(max_length, dtype=dtype, name="positions"),
        dropout=config["embd_pdrop"],
        tie_embeddings=config["tie_word_embeddings"],
        **add_token_ids(config, **kwargs, several=True),
    )


def _layer(config, dtype, name):
    d_model, num_heads = sizes_of(config, "n_embd", "n_head")
    check_divisible(config, "n_embd", "n_head")
    attention = MultiHeadAttention(
        num_heads,
        d_model // num_heads,
        dropout=config["attn_pdrop"],
        scale=None if config["scale_attn_weights"] else 1.0,
        dtype=dtype,
        name="self_attention",
    )
    return DecoderLayer(
        attention=attention,
        d_ff=config["n_inner"] or 4 * d_model,
        activation=activation_from(config, "activation_function"),
        dropout=config["resid_pdrop"],
        normalize_first=True,
        layer_norm_epsilon=config["layer_norm_epsilon"],
        dtype=dtype,
        name=name,
    )


def make_config(model):
    """Makes the config.json of a model."""
    check_parts("gpt2", model=(model, LanguageModel))
    check_parts("gpt2", positions=(model.positions, LearnedPositions), decoder=(model.decoder, Decoder))
    attention, feed_forward, residual = check_layers("gpt2", model.decoder, normalize_first=True)
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
        **token_id_keys(model),
    }


def make_tensors(model):
    """Describes the tensors. Matrices are `(inputs, outputs)`, and one holds the queries, keys and values."""
    yield matrix("transformer.wte.weight", model.token_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    yield matrix("transformer.wpe.weight", model.positions.embeddings)
    for i, layer in enumerate(model.decoder.layers):
        name, attention, feed_forward = f"transformer.h.{i}", layer.self_attention, layer.feed_forward
        projections = attention.query_dense, attention.key_dense, attention.value_dense
        yield from norm(f"{name}.ln_1", layer.self_attention_residual.norm)
        yield from dense(f"{name}.attn.c_attn", *projections, transposed=False)
        yield from dense(f"{name}.attn.c_proj", attention.output_dense, input_axes=2, transposed=False)
        yield from norm(f"{name}.ln_2", layer.feed_forward_residual.norm)
        yield from dense(f"{name}.mlp.c_fc", feed_forward.inner, transposed=False)
        yield from dense(f"{name}.mlp.c_proj", feed_forward.outer, transposed=False)
    yield from norm("transformer.ln_f", model.decoder.norm)


def read_tokenizers(folder):
    """Reads tokenizer.json, or vocab.json and merges.txt."""
    return (read_byte_pair(folder, **dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>")),)


def write_tokenizers(tokenizers, folder, model):
    """Writes tokenizer.json."""
    from keras_transformer.text import BytePairTokenizer  # loads TensorFlow

    (tokenizer,) = check_tokenizers("gpt2", tokenizers, BytePairTokenizer, model)
    write_byte_pair(tokenizer, folder, starts_with_bos=False)


FAMILY = Family(
    "gpt2",
    make_model,
    make_config,
    make_tensors,
    prefix="transformer.",
    ignored=(re.compile(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),),  # a causal mask
    tokenizer=TokenizerKind((("tokenizer.json", "vocab.json"),), read_tokenizers, write_tokenizers),
)
