"""Describes a translator so that the JavaScript of a page can run it."""

import base64

import keras
import numpy as np
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNormalization,
    LearnedPositions,
    MultiHeadAttention,
    PositionalEncoding,
    Residual,
    RMSNormalization,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.layers.numbers import first_difference, numbers
from keras_transformer.models import EncoderDecoder, Transformer

# Number of bytes of weights in base64. A browser reads more, but slowly.
LARGEST_PAGE = 20e6
PRECISIONS = ("float16", "int8")
# The activations that viewer_transformer.js has.
ACTIVATIONS = {
    keras.activations.linear: "linear",
    keras.activations.relu: "relu",
    keras.activations.gelu: "gelu",
    gelu_tanh: "gelu_tanh",
    keras.activations.silu: "silu",
}
NORMS = {LayerNormalization: "layer", RMSNormalization: "rms"}
ALGORITHMS = {
    sentencepiece_model_pb2.TrainerSpec.UNIGRAM: "unigram",
    sentencepiece_model_pb2.TrainerSpec.BPE: "bpe",
}
PIECE_TYPES = sentencepiece_model_pb2.ModelProto.SentencePiece


class CannotRunError(Exception):
    """Says why a page cannot run a translator."""


def describe_translator(translator, precision=None):
    """Describes a translator: its model, its weights, its tokenizers and its search.

    Args:
        translator: A `Translator`.
        precision: "float16" or "int8" for the matrices; None for float16 where the page stays small enough, else int8.

    Returns:
        A dict of plain values, and the bytes of the weights.

    Raises:
        CannotRunError: If the page cannot run the translator.
    """
    config = {**_describe_model(translator.model), **_describe_search(translator)}
    source, target = translator.source_tokenizer, translator.target_tokenizer
    description = {
        "config": config,
        "source_tokenizer": _describe_tokenizer(source),
        "target_tokenizer": None if target is source else _describe_tokenizer(target, normalizes=False),
    }
    for kind in PRECISIONS if precision is None else (precision,):
        entries, content = pack_weights(named_weights(translator.model), kind)
        size = 4 * len(content) / 3
        if size <= LARGEST_PAGE:
            return {**description, "precision": kind, "tensors": entries}, content
    raise CannotRunError(
        f"its weights take {size / 1e6:.0f} MB as {kind}, and a page holds {LARGEST_PAGE / 1e6:.0f} MB"
    )


def pack_weights(weights, precision):
    """Writes arrays one after another. Vectors stay float32; matrices become float16 or int8.

    An int8 matrix has a float32 scale for each output channel: for each column, and for each row of an embedding, whose
    rows are the outputs of the tied projection.

    Args:
        weights: A dict from a name to a NumPy array.
        precision: "float16" or "int8".

    Returns:
        A list with the name, the dtype, the shape and the place of each array, and the bytes.
    """
    entries, content = [], bytearray()

    def append(array):
        content.extend(b"\0" * (-len(content) % 4))
        content.extend(array.tobytes())
        return len(content) - array.nbytes

    for name, array in weights.items():
        entry = {"name": name, "dtype": "float32", "shape": list(array.shape), "scales": 0, "channels": 0}
        if array.ndim == 1:
            stored = array.astype("<f4")
        elif precision == "float16":
            entry["dtype"], stored = precision, array.astype("<f2")
        else:
            entry["dtype"], entry["channels"] = precision, 0 if name.endswith("embeddings") else 1
            reach = np.abs(array).max(axis=1 - entry["channels"], keepdims=True)
            scales = (np.maximum(reach, 1e-12) / 127).astype("<f4")
            stored = np.rint(array / scales).astype("int8")
            entry["scales"] = append(scales)
        entry["start"] = append(stored)
        entries.append(entry)
    return entries, bytes(content)


def _require(holds, reason):
    if not holds:
        raise CannotRunError(reason)


def _exactly(layer, *classes):
    """Raises unless a layer is of one of these classes and no subclass, which may compute something else."""
    _require(type(layer) in classes, f"it has a layer of class {type(layer).__name__}")
    _require(getattr(layer, "quantization_mode", None) is None, "it is quantized")


def _describe_model(model):
    """Returns the sizes and variants of a model, or raises `CannotRunError`."""
    _require(type(model) in (Transformer, EncoderDecoder), f"it is a {type(model).__name__}")
    _require(model.compute_dtype == "float32", f"it computes in {model.compute_dtype}")
    source, target = model.source, model.target
    for embeddings in (source, target):
        _exactly(embeddings, Embeddings)
        _exactly(embeddings.tokens, TokenEmbedding)
        parts = embeddings.segments, embeddings.norm, embeddings.widen
        _require(parts == (None,) * 3, "its embeddings have segments, a norm or another width")
    _require(source.positions is target.positions, "source and target have positions of their own")
    _exactly(source.positions, PositionalEncoding, LearnedPositions)
    _exactly(model.encoder, Encoder)
    _exactly(model.decoder, Decoder)
    output = model.output_embedding
    plain = output is target.tokens and output.tie_weights and output.output_scale == 1.0
    _require(plain and output.soft_cap is None, "its output projection is not the tied one")
    layers = [*model.encoder.layers, *model.decoder.layers]
    config, norms = None, {}
    for layer in layers:
        _exactly(layer, EncoderLayer, DecoderLayer)
        described = _describe_layer(layer)
        config = described if config is None else config
        _require(described == config, "its layers differ")
    for name, norm in _norms(model):
        _exactly(norm, *NORMS)
        _require(_gamma(norm) is not None, "it has norms without a scale")
        norms[name] = {"kind": NORMS[type(norm)], "epsilon": norm.epsilon}
    return {
        **config,
        "num_layers": len(model.encoder.layers),
        "num_decoder_layers": len(model.decoder.layers),
        "d_model": model.d_model,
        "parameters": model.count_params(),
        "norms": norms,
        "positions": {
            key: getattr(source.positions, key)
            for key in ("interleaved", "max_wavelength", "max_length")
            if hasattr(source.positions, key)
        },
        "scales": {"source": source.tokens.scale, "target": target.tokens.scale},
        "bos_id": model.bos_id,
        "eos_id": model.eos_id,
        "max_positions": model.max_positions,
    }


def _describe_layer(layer):
    """Returns the variants of a layer of the encoder or the decoder, or raises `CannotRunError`."""
    attentions = [layer.self_attention, getattr(layer, "cross_attention", None)]
    for attention in filter(None, attentions):
        check_plain(attention)
        _require(attention.num_heads == layer.self_attention.num_heads, "its layers differ")
    is_decoder = isinstance(layer, DecoderLayer)
    _require(is_decoder or not layer.use_causal_mask, "its encoder has `use_causal_mask`")
    _exactly(layer.feed_forward, FeedForward)
    activation = layer.feed_forward.activation
    _require(activation in ACTIVATIONS, f"its activation is {getattr(activation, '__name__', activation)}")
    for residual in _residuals(layer).values():
        _exactly(residual, Residual)
        options = {"layer_norm_epsilon": residual.layer_norm_epsilon, "norm": residual.norm_kind}
        plain = Residual(normalize_first=layer.normalize_first, **options)
        plain.build((None, None, *layer.feed_forward.outer.outer_shape))
        _check_same(residual, plain, "residual connection")
    return {
        "num_heads": layer.self_attention.num_heads,
        "activation": ACTIVATIONS[activation],
        "normalize_first": layer.normalize_first,
    }


def check_plain(attention):
    """Raises `CannotRunError` unless an attention is that of the paper: `softmax(q kᵀ / sqrt(key_dim)) v`."""
    _exactly(attention, MultiHeadAttention)
    sizes = ("num_heads", "key_dim", "value_dim", "use_bias", "output_bias", "output_shape")
    options = {name: value for name, value in attention.numbers().items() if name in sizes}
    _check_same(attention, MultiHeadAttention(**options), "attention")


def _check_same(layer, plain, name):
    """Raises `CannotRunError` for a layer with an option that a plain one does not have."""
    difference = first_difference(numbers(layer), numbers(plain))
    _require(difference is None, difference and f"its {name} has `{difference[0]}`")


def _residuals(layer):
    names = ("self_attention", "cross_attention", "feed_forward")
    residuals = {f"{name}_residual": getattr(layer, f"{name}_residual", None) for name in names}
    return {name: residual for name, residual in residuals.items() if residual is not None}


def _norms(model):
    """Yields each norm of a model with its name."""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            for name, residual in _residuals(layer).items():
                yield f"{side}/{i}/{name}/norm", residual.norm
        if stack.norm is not None:
            yield f"{side}/norm", stack.norm


def _gamma(norm):
    return norm.gamma if isinstance(norm, LayerNormalization) else norm.scale


def named_weights(model):
    """Returns a dict from the names that the page knows to float32 arrays; matrices are `(inputs, outputs)`."""
    weights = {}

    def add(name, array, shape=None):
        if array is not None:
            array = keras.ops.convert_to_numpy(array).astype("float32")
            weights[name] = array if shape is None else array.reshape(shape)

    def add_dense(name, dense, inputs):
        add(f"{name}/kernel", dense.kernel, (inputs, -1))
        add(f"{name}/bias", dense.bias, (-1,))

    source, target = model.source, model.target
    add("target_embedding/embeddings", target.tokens.embeddings)
    if source.tokens is not target.tokens:
        add("source_embedding/embeddings", source.tokens.embeddings)
    add("target_embedding/bias", target.tokens.bias)
    if isinstance(source.positions, LearnedPositions):
        add("positions/embeddings", source.positions.embeddings)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            prefix = f"{side}/{i}"
            for kind in ("self_attention", "cross_attention"):
                attention = getattr(layer, kind, None)
                if attention is not None:
                    for part in ("query", "key", "value"):
                        add_dense(
                            f"{prefix}/{kind}/{part}", getattr(attention, f"{part}_dense"), model.d_model
                        )
                    joined = attention.num_heads * attention.value_dim
                    add_dense(f"{prefix}/{kind}/attention_output", attention.output_dense, joined)
            add_dense(f"{prefix}/feed_forward/inner", layer.feed_forward.inner, model.d_model)
            add_dense(f"{prefix}/feed_forward/outer", layer.feed_forward.outer, layer.feed_forward.d_ff)
    for name, norm in _norms(model):
        add(f"{name}/gamma", _gamma(norm))
        add(f"{name}/beta", getattr(norm, "beta", None))
    return weights


def _describe_search(translator):
    """Returns the width, the penalties and the limits of a translator's search, or raises `CannotRunError`."""
    strategy = translator.strategy
    _require(type(strategy) in (Greedy, Beam), f"it searches with {type(strategy).__name__}")
    _require(not translator.constraints, "its search has constraints")
    frame = translator.frame
    is_plain = not frame.source_start and not frame.target_start and frame.end_of_source == (frame.eos_id,)
    _require(is_plain, "it puts other ids than eos around its texts")
    # A reader of the page may ask for a beam.
    beam = strategy if isinstance(strategy, Beam) else Beam()
    return {
        "search": {
            "width": strategy.width,
            "length_penalty": beam.length_penalty,
            "normalization": beam.normalization,
        },
        "max_source_length": translator.max_source_length,
        "max_length": translator.max_length,
    }


def _describe_tokenizer(tokenizer, normalizes=True):
    """Returns the pieces and the rules of a SentencePiece tokenizer, or raises `CannotRunError`.

    Args:
        tokenizer: A tokenizer of `keras_transformer.text`.
        normalizes: Whether texts are tokenized, so that the character map is needed.
    """
    content = getattr(tokenizer, "model", None)
    _require(isinstance(content, bytes), f"its tokenizer is a {type(tokenizer).__name__}")
    _require(tokenizer.vocabulary is None, "its tokenizer has other ids than its SentencePiece model")
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    _require(trainer.model_type in ALGORITHMS, "its tokenizer is neither a unigram nor a BPE model")
    _require(not trainer.treat_whitespace_as_suffix, "its tokenizer writes spaces after words")
    types = {piece.type for piece in model.pieces}
    special = {PIECE_TYPES.USER_DEFINED, PIECE_TYPES.UNUSED}
    _require(not types & special, "its tokenizer has user-defined or unused pieces")
    rules = ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces")
    character_map = normalizer.precompiled_charsmap if normalizes else b""
    return {
        "algorithm": ALGORITHMS[trainer.model_type],
        "byte_fallback": trainer.byte_fallback,
        "unk_id": tokenizer.unk_id,
        "pieces": [[piece.piece, piece.score, piece.type] for piece in model.pieces],
        "normalizer": {
            **{rule: getattr(normalizer, rule) for rule in rules},
            "character_map": base64.b64encode(character_map).decode(),
        },
    }
