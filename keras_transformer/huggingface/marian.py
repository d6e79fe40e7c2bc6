"""Marian: Junczys-Dowmunt et al., 2018, "Marian: Fast Neural Machine Translation in C++", as trained by Tiedemann and
Thottingal, 2020, "OPUS-MT".
"""

import numpy as np
from keras import ops

from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_plain_attention,
    check_sizes,
    layer_parts,
    token_ids,
    with_token_ids,
)
from keras_transformer.huggingface.files import read_object, write_object
from keras_transformer.huggingface.tensors import Computed, matrix, norm, plain, projections
from keras_transformer.huggingface.tokenizers import SENTENCE_PIECE, checked, write_tokenizer_config
from keras_transformer.layers import (
    PositionalEncoding,
    sinusoidal_positions,
)
from keras_transformer.models import Transformer

PREFIX = "model."
BUFFERS = ()
TOKENIZER_FILES = (("source.spm",), ("target.spm",), ("vocab.json",))
FREE = ("max_position_embeddings",)  # sinusoidal positions have no end
START = "decoder_start_token_id"
EPSILON = 1e-5
DEFAULTS = {
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    START: 58100,
}


def model(config, **kwargs):
    """The model that a configuration describes."""
    config = {**DEFAULTS, **config}
    shared = config["share_encoder_decoder_embeddings"]
    check_config(
        config,
        is_encoder_decoder=True,
        tie_word_embeddings=True,
        decoder_ffn_dim=config["encoder_ffn_dim"],
        decoder_attention_heads=config["encoder_attention_heads"],
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        static_position_embeddings=True,
        **({"decoder_vocab_size": config["vocab_size"]} if shared else {}),
    )
    vocab_size, d_model, d_ff, num_heads, num_layers, num_decoder_layers = check_sizes(
        config,
        "vocab_size",
        "d_model",
        "encoder_ffn_dim",
        "encoder_attention_heads",
        "encoder_layers",
        "decoder_layers",
    )
    return Transformer(
        vocab_size,
        None if shared else config["decoder_vocab_size"] or vocab_size,
        num_layers=num_layers,
        num_decoder_layers=num_decoder_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        dropout=config["dropout"],
        positions=PositionalEncoding(interleaved=False),
        embedding_scale=None if config["scale_embedding"] else 1.0,
        output_bias=True,
        activation=activation(config, "activation_function"),
        layer_norm_epsilon=EPSILON,
        attention_dropout=config["attention_dropout"],
        activation_dropout=config["activation_dropout"],
        **with_token_ids(config, **kwargs, start=START),
    )


def config(model):
    """The configuration that describes a model. `max_position_embeddings` is transformers' own, of positions that have
    no end.
    """
    check_parts("marian", model=(model, Transformer))
    check_parts("marian", positions=(model.positions, PositionalEncoding))
    attention, feed_forward, residual = layer_parts("marian", model.encoder, normalize_first=False)
    check_parts(
        "marian",
        interleaved=(model.positions.interleaved, False),
        max_wavelength=(model.positions.max_wavelength, 10000.0),
        output_bias=(model.output_bias, True),
        layer_norm_epsilon=(residual.norm.epsilon, EPSILON),
    )
    d_model, scale = model.d_model, model.target_embedding.scale
    check_plain_attention("marian", attention, d_model)
    check_parts(
        "marian",
        embedding_scale=(scale, 1.0 if scale == 1.0 else d_model**0.5),
        feed_forward_bias=(feed_forward.use_bias, True),
    )
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": model.source_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "max_position_embeddings": DEFAULTS["max_position_embeddings"],
        "encoder_layers": model.encoder.num_layers,
        "encoder_ffn_dim": feed_forward.d_ff,
        "encoder_attention_heads": attention.num_heads,
        "decoder_layers": model.decoder.num_layers,
        "decoder_ffn_dim": feed_forward.d_ff,
        "decoder_attention_heads": attention.num_heads,
        "activation_function": activation_name("marian", feed_forward),
        "d_model": d_model,
        "dropout": model.dropout,
        "attention_dropout": attention.dropout,
        "activation_dropout": feed_forward.dropout,
        "scale_embedding": scale != 1.0,
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **token_ids(model, START),
        "forced_eos_token_id": model.eos_id,
    }


def tensors(model):
    """The tensors of its checkpoints."""
    if model.share_embeddings:
        yield matrix("model.shared.weight", model.target_embedding.embeddings)
    yield matrix("model.encoder.embed_tokens.weight", model.source_embedding.embeddings)
    yield matrix("model.decoder.embed_tokens.weight", model.target_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    yield matrix("final_logits_bias", model.output_embedding.bias, inputs=0)
    for stack, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder.layers)):
        for i, layer in enumerate(layers):
            yield from _layer(f"model.{stack}.layers.{i}", layer)


def _layer(name, layer):
    sublayers = [("self_attn", layer.self_attention, layer.self_attention_residual)]
    if getattr(layer, "cross_attention", None) is not None:
        sublayers.append(("encoder_attn", layer.cross_attention, layer.cross_attention_residual))
    for part, attention, residual in sublayers:
        own = [f"{name}.{part}.{projection}_proj" for projection in ("q", "k", "v", "out")]
        yield from projections(attention, *own)
        yield from norm(f"{name}.{part}_layer_norm", residual.norm)
    for part, own in (("fc1", layer.feed_forward.inner), ("fc2", layer.feed_forward.outer)):
        yield from plain(f"{name}.{part}", own)
    yield from norm(f"{name}.final_layer_norm", layer.feed_forward_residual.norm)


def computed(model):
    """The tables of positions, which old checkpoints hold."""

    def table(length):
        positions = sinusoidal_positions(np.arange(length), model.d_model, interleaved=False)
        return ops.convert_to_numpy(positions)

    for stack in ("encoder", "decoder"):
        yield Computed(f"model.{stack}.embed_positions.weight", model.d_model, table)


def tokenizers(folder, config):
    """The tokenizers of source.spm and target.spm, with the ids of vocab.json, and of target_vocab.json where it is."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    target = folder / "target_vocab.json"
    vocabularies = folder / "vocab.json", target if target.is_file() else folder / "vocab.json"
    return tuple(
        SentencePieceTokenizer(folder / f"{side}.spm", _vocabulary(path))
        for side, path in zip(("source", "target"), vocabularies, strict=True)
    )


def _vocabulary(path):
    """The pieces of a file with the id of each, in the order of their ids."""
    ids = read_object(path)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise ValueError(f"{path} must have the ids from 0 to {len(ids) - 1}, each once.")
    return sorted(ids, key=ids.get)


def write_tokenizers(tokenizers, folder, model):
    """The way back: source.spm, target.spm, and the ids of their pieces in vocab.json, and in target_vocab.json where
    the target's are others.
    """
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    both = checked("marian", tokenizers, SentencePieceTokenizer, model, count=2)
    vocabularies = []
    for side, tokenizer in zip(("source", "target"), both, strict=True):
        (folder / f"{side}.spm").write_bytes(tokenizer.model)
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        missing = [
            SENTENCE_PIECE[name] for name in ("pad", "unk", "eos") if SENTENCE_PIECE[name] not in pieces
        ]
        if missing:
            raise ValueError(f"`tokenizers` of a 'marian' model must have {missing[0]!r} among their pieces.")
        vocabularies.append({piece: i for i, piece in enumerate(pieces)})
    source, target = vocabularies
    write_object(folder / "vocab.json", source)
    if target != source:
        write_object(folder / "target_vocab.json", target)
    pieces = {name: SENTENCE_PIECE[name] for name in ("pad", "unk", "eos")}
    write_tokenizer_config(folder, "MarianTokenizer", pieces, separate_vocabs=target != source)
