"""Small models of every class, with weights that hide nothing, and their inputs, for the contract of models."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
from contracts import as_numpy, normal, randomized

from keras_transformer import layers
from keras_transformer.models import (
    T5,
    ClassificationHead,
    EncoderModel,
    Ensemble,
    LanguageModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    RecurrentSeq2Seq,
    TaggingHead,
    Transformer,
    VisionTransformer,
)

PAD, BOS, EOS = 0, 2, 3
SOURCE_VOCAB, TARGET_VOCAB, D_MODEL, HEADS, D_FF = 13, 11, 6, 3, 17
SOURCE = np.array([[5, 7, 12, 4, 1, 9, 3], [8, 4, 11, 3, 0, 0, 0], [6, 3, 0, 0, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 9, 10, 4], [2, 7, 3, 0, 0], [2, 4, 6, 3, 0]], "int32")
PAIR = {"source": SOURCE, "target": TARGET}


def transformer(seed=0, scale=0.4, vocabularies=(SOURCE_VOCAB, TARGET_VOCAB), **arguments):
    sizes = {"num_layers": 2, "d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF, "dropout": 0.0}
    return randomized(Transformer(*vocabularies, **{**sizes, **arguments}), seed, scale)


def marian():
    """One vocabulary, the other order of positions, embeddings as they are, a bias for each id, fewer layers."""
    more = {"embedding_scale": 1.0, "output_bias": True, "num_decoder_layers": 1}
    return {"vocabularies": (13,), "positions": layers.PositionalEncoding(interleaved=False), **more}


def recurrent(seed=0, scale=0.8, vocabularies=(SOURCE_VOCAB, TARGET_VOCAB), **arguments):
    sizes = {"num_layers": 2, "d_model": D_MODEL, "dropout": 0.0}
    return randomized(RecurrentSeq2Seq(*vocabularies, **{**sizes, **arguments}), seed, scale)


def ensemble(seed=0, **arguments):
    """Models of two classes and of different sizes."""
    return Ensemble([transformer(seed, **arguments), recurrent(seed + 1, d_model=7, **arguments)])


BUCKETS, DISTANCE = 8, 6
T5_PAIR = {
    "source": np.array([[5, 7, 12, 4, 9, 3, 1], [8, 4, 11, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0, 0]], "int32"),
    "target": np.array([[0, 5, 9, 10, 4], [0, 7, 3, 0, 0], [0, 4, 6, 3, 0]], "int32"),
}
GATED = {"activation": "gelu_tanh", "gated": True, "tie_embeddings": False}


def t5(seed=0, scale=0.4, **arguments):
    sizes = {"num_layers": 2, "num_decoder_layers": 3, "d_model": 10, "num_heads": HEADS, "key_dim": 4}
    sizes |= {"d_ff": D_FF, "dropout": 0.0, "num_buckets": BUCKETS, "max_distance": DISTANCE}
    return randomized(T5(13, **{**sizes, **arguments}), seed, scale)


LM_VOCAB = 29
PRE_NORM = {"dropout": 0.0, "normalize_first": True, "norm": "rms", "layer_norm_epsilon": 1e-5}
PROMPTS = np.array([[5, 7, 11, 4, 9], [8, 6, 0, 0, 0], [13, 0, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")


def gpt2(dropout=0.0, **kwargs):
    """Learned positions, plain heads, pre-norm, tied embeddings."""
    decoder = layers.Decoder(2, 3, 17, dropout=dropout, activation="gelu", normalize_first=True)
    embeddings = layers.Embeddings(LM_VOCAB, 12, layers.LearnedPositions(64), dropout=dropout, **kwargs)
    return randomized(LanguageModel(embeddings, decoder), seed=5)


def llama(dropout=0.0, **kwargs):
    """Rotary positions, grouped queries, RMS norms, a gated network, an output projection of its own."""
    positions, heads = layers.RotaryPositions(), {"num_key_value_heads": 2, "use_bias": False}
    stack = [
        layers.DecoderLayer(
            attention=layers.MultiHeadAttention(6, 4, positions=positions, **heads),
            feed_forward=layers.GatedFeedForward(17),
            **{**PRE_NORM, "dropout": dropout},
        )
        for _ in range(2)
    ]
    decoder = layers.Decoder(stack)
    output = layers.TokenEmbedding(LM_VOCAB, 12, name="output_embedding")
    embeddings = layers.Embeddings(LM_VOCAB, 12, dropout=dropout)
    return randomized(LanguageModel(embeddings, decoder, output=output, **kwargs), seed=5)


CLASSES = 5
TEXTS = {
    "token_ids": np.array([[2, 7, 11, 3, 9, 3], [2, 6, 3, 8, 3, 0], [2, 3, 0, 0, 0, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], "int32"),
}
ENCODERS = {
    "states": dict,
    "masked_language": lambda: {"head": MaskedLanguageHead(name="head")},
    "classification": lambda: {
        "head": ClassificationHead(CLASSES, name="head"),
        "pooler": Pooler(name="pooler"),
    },
    "unpooled": lambda: {"head": ClassificationHead(CLASSES, name="head")},
    "choice": lambda: {"head": MultipleChoiceHead(name="head"), "pooler": Pooler(name="pooler")},
    "tagging": lambda: {"head": TaggingHead(CLASSES, name="head")},
    "pooler": lambda: {"head": Pooler(name="head")},
}


def encoder_model(seed=5, dropout=0.0, **kwargs):
    """A model of two post-norm layers."""
    encoder = layers.Encoder(2, 3, 17, dropout=dropout, activation="relu", name="encoder")
    parts = {
        "segments": layers.SegmentEmbedding(name="segments"),
        "norm": layers.LayerNormalization(epsilon=1e-12, name="norm"),
        "output_bias": getattr(kwargs.get("head"), "scores_ids", False),
    }
    parts |= {name: kwargs.pop(name) for name in parts if name in kwargs}
    positions = layers.LearnedPositions(9, name="positions")
    embeddings = layers.Embeddings(LM_VOCAB, 12, positions, dropout=dropout, name="embeddings", **parts)
    return randomized(EncoderModel(**{"embeddings": embeddings, "encoder": encoder, **kwargs}), seed)


SIZE, PATCH, CHANNELS, PATCHES, KINDS = (6, 10), (2, 5), 3, 3 * 2, 7


def vision(num_classes=KINDS, seed=0, scale=0.4, image_size=SIZE, dropout=0.0, **arguments):
    stack = {"dropout": dropout, "activation": "gelu", "normalize_first": True}
    encoder = arguments.pop("encoder", None) or layers.Encoder(2, HEADS, 17, **stack)
    patch_size = arguments.pop("patch_size", PATCH)
    return randomized(
        VisionTransformer(image_size, patch_size, 12, encoder, num_classes, **arguments), seed, scale
    )


def images(batch=2, channels=CHANNELS, size=SIZE, seed=0):
    return normal(batch, *size, channels, seed=seed)


class Case(NamedTuple):
    """How a model is made, what it reads, and what of its output belongs to real tokens: a mask, or all."""

    make: Any
    inputs: Any
    real: Any = ...


def with_arguments(make, arguments):
    return lambda **more: make(**{**arguments(), **more})


CASES = {
    "transformer": Case(transformer, PAIR, TARGET != PAD),
    "pre_norm": Case(with_arguments(transformer, lambda: {"normalize_first": True}), PAIR, TARGET != PAD),
    "variant": Case(with_arguments(transformer, marian), PAIR, TARGET != PAD),
    "recurrent": Case(recurrent, PAIR, TARGET != PAD),
    "ensemble": Case(ensemble, PAIR, TARGET != PAD),
    "t5": Case(t5, T5_PAIR),
    "t5_gated": Case(
        with_arguments(t5, lambda: {**GATED, "seed": 1, "layer_norm_epsilon": 1e-3, "output_scale": 0.7}),
        T5_PAIR,
    ),
    "gpt2": Case(gpt2, PROMPTS, PROMPTS != PAD),
    "llama": Case(llama, PROMPTS, PROMPTS != PAD),
    "vision": Case(with_arguments(vision, lambda: {"pooler": keras.layers.Dense(5, "tanh")}), images()),
    "vision_states": Case(with_arguments(vision, lambda: {"num_classes": None}), images()),
}
for name, arguments in ENCODERS.items():
    of_tokens = name in ("states", "masked_language", "tagging")
    real = TEXTS["token_ids"] != PAD if of_tokens else ...
    CASES[name] = Case(with_arguments(encoder_model, arguments), TEXTS, real)


@functools.cache
def shared(name):
    """Returns the model of a case, and its output. Tests share it: no test may change it."""
    case = CASES[name]
    model = case.make()
    return model, as_numpy(model(case.inputs))


def boosted(model, factor):
    """Makes the end of a text likelier, so that outputs differ in length; the test of greedy search checks it."""
    table = as_numpy(model.target.tokens.embeddings)
    table[model.eos_id] *= factor
    model.target.tokens.embeddings.assign(table)
    return model


def writer(**arguments):
    """Weights whose greedy outputs end early and late."""
    model = transformer(seed=532, scale=0.7, **arguments)
    # With a large tied embedding each token would only be followed by itself.
    model.target.tokens.embeddings.assign(0.3 * model.target.tokens.embeddings)
    return model


def writing_ensemble():
    return Ensemble([writer(), boosted(recurrent(7, 0.6, d_model=12), 1.6)])


# Models that write, with sources of different lengths.
WRITERS = {
    "transformer": (writer, SOURCE),
    "recurrent": (lambda: boosted(recurrent(7, 0.6, (23,), d_model=12), 1.6), SOURCE),
    "ensemble": (writing_ensemble, SOURCE),
    "t5": (lambda: t5(seed=39), T5_PAIR["source"]),
    "gpt2": (gpt2, PROMPTS),
    "llama": (llama, PROMPTS),
}
