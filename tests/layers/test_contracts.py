"""Every public layer keeps the contract of `tests/contracts.py`."""

import keras
import numpy as np
import pytest
from contracts import check_layer_contract, normal
from keras import tree

from keras_transformer import layers

BATCH, TARGET_LEN, SOURCE_LEN, D_MODEL, MEMORY_FEATURES, VOCAB = 2, 5, 7, 6, 11, 13
MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])


def hidden():
    return normal(BATCH, TARGET_LEN, D_MODEL)


def memory():
    return normal(BATCH, SOURCE_LEN, MEMORY_FEATURES)


def stack(layer_class, **arguments):
    def make(**kwargs):
        return layer_class(num_heads=3, d_ff=17, dropout=0.0, **arguments, **kwargs)

    return make


def attention(**arguments):
    return lambda **kwargs: layers.MultiHeadAttention(3, 5, value_dim=2, **arguments, **kwargs)


CASES = {
    "attention": (attention(), lambda: [hidden(), memory()]),
    "attention_without_bias": (attention(use_bias=False), lambda: [hidden(), memory()]),
    "attention_output_shape": (attention(output_shape=19), lambda: [hidden(), memory()]),
    "attention_separate_key": (
        attention(),
        lambda: [hidden(), memory(), normal(BATCH, SOURCE_LEN, 3)],
    ),
    "positions": (layers.PositionalEncoding, lambda: [hidden()]),
    "positions_short_waves": (
        lambda **kwargs: layers.PositionalEncoding(max_wavelength=7.0, **kwargs),
        lambda: [hidden()],
    ),
    "positions_in_halves": (
        lambda **kwargs: layers.PositionalEncoding(interleaved=False, **kwargs),
        lambda: [hidden()],
    ),
    "dropout": (lambda **kwargs: layers.Dropout(0.3, **kwargs), lambda: [hidden()]),
    "norm": (layers.LayerNormalization, lambda: [hidden()]),
    "feed_forward": (lambda **kwargs: layers.FeedForward(17, "gelu", **kwargs), lambda: [hidden()]),
    "residual_post_norm": (
        lambda **kwargs: layers.Residual(0.0, **kwargs),
        lambda: [hidden(), normal(BATCH, TARGET_LEN, D_MODEL, seed=1)],
    ),
    "residual_pre_norm": (
        lambda **kwargs: layers.Residual(0.0, normalize_first=True, layer_norm_epsilon=1e-3, **kwargs),
        lambda: [hidden(), normal(BATCH, TARGET_LEN, D_MODEL, seed=1)],
    ),
    "encoder_layer": (stack(layers.EncoderLayer), lambda: [hidden()]),
    "encoder_layer_pre_norm": (
        stack(layers.EncoderLayer, normalize_first=True, activation="gelu"),
        lambda: [hidden()],
    ),
    "encoder_pre_norm": (stack(layers.Encoder, num_layers=2, normalize_first=True), lambda: [hidden()]),
    "decoder_layer": (stack(layers.DecoderLayer), lambda: [hidden(), memory()]),
    "decoder_pre_norm": (
        stack(layers.Decoder, num_layers=2, normalize_first=True),
        lambda: [hidden(), memory()],
    ),
}
# Their values are compared with those of independent references in their own tests.
CASES |= {
    "lstm": (lambda **kwargs: layers.LSTMStack(2, 7, **kwargs), lambda: [hidden()]),
    "luong_attention": (layers.LuongAttention, lambda: [hidden(), normal(BATCH, SOURCE_LEN, D_MODEL)]),
    "rms_norm": (layers.RMSNormalization, lambda: [hidden()]),
    "segments": (
        lambda **kwargs: layers.SegmentEmbedding(2, **kwargs),
        lambda: [hidden(), np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], "int32")],
    ),
    "learned_positions": (lambda **kwargs: layers.LearnedPositions(7, **kwargs), lambda: [hidden()]),
    "rotary": (
        lambda **kwargs: layers.RotaryPositions(scaling=layers.LinearScaling(2.0), **kwargs),
        lambda: [hidden()],
    ),
    "gated_feed_forward": (lambda **kwargs: layers.GatedFeedForward(17, **kwargs), lambda: [hidden()]),
    "experts": (
        lambda **kwargs: layers.MixtureOfExperts(layers.FeedForward(5), 3, **kwargs),
        lambda: [hidden()],
    ),
    "sandwich": (
        lambda **kwargs: layers.SandwichResidual(0.0, **kwargs),
        lambda: [hidden(), normal(BATCH, TARGET_LEN, D_MODEL, seed=1)],
    ),
    "attention_of_parts": (
        attention(
            num_key_value_heads=1,
            positions=layers.ALiBi(),
            sliding_window=2,
            query_key_norm=layers.RMSNormalization(),
            scale=0.3,
        ),
        lambda: [hidden(), memory()],
    ),
    "decoder_of_parts": (
        lambda **kwargs: layers.Decoder(
            2,
            attention=layers.MultiHeadAttention(
                2, 3, positions=layers.RelativePositionBias(2, 8, 5, bidirectional=False)
            ),
            feed_forward=layers.GatedFeedForward(17),
            residual=layers.Residual(0.0, True, norm=layers.RMSNormalization(1e-5)),
            **kwargs,
        ),
        lambda: [hidden()],
    ),
}
# Bfloat16 keeps 8 bits: what a stack adds up and normalises again may be off by more than one layer.
DEEP = ("encoder_pre_norm", "decoder_pre_norm", "decoder_of_parts")


@pytest.mark.parametrize("case", CASES)
def test_layer_keeps_the_contract(case, tmp_path):
    make_layer, make_inputs = CASES[case]
    tolerance = 0.15 if case in DEEP else 0.06
    check_layer_contract(make_layer, make_inputs, tmp_path, mask=MASK, bfloat16=tolerance)


def test_embedding_keeps_the_contract(tmp_path):
    check_layer_contract(
        lambda **kwargs: layers.TokenEmbedding(VOCAB, D_MODEL, pad_id=0, **kwargs),
        lambda: [np.array([[3, 12, 5, 1, 7], [4, 2, 9, 0, 0]], "int32")],
        tmp_path,
    )


def test_every_public_layer_is_in_the_contract():
    public = {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }
    checked = {type(make()) for make, _ in CASES.values()} | {layers.TokenEmbedding}
    parts_of_attention = {layers.ALiBi, layers.RelativePositionBias}
    of_images = {layers.ImagePreprocessing, layers.PatchEmbedding}  # test_images.py, test_patches.py
    assert checked == public - parts_of_attention - of_images


STACKS = (
    (layers.EncoderLayer, ()),
    (layers.DecoderLayer, ()),
    (layers.Encoder, (2,)),
    (layers.Decoder, (2,)),
)
PLAIN = {
    "num_heads": 3,
    "d_ff": 17,
    "dropout": 0.3,
    "activation": "gelu",
    "normalize_first": True,
    "layer_norm_epsilon": 1e-3,
    "attention_dropout": 0.2,
    "activation_dropout": 0.4,
    "kernel_initializer": "he_normal",
}
TEMPLATES = {
    "attention": layers.MultiHeadAttention(3, 2, positions=layers.ALiBi()),
    "feed_forward": layers.GatedFeedForward(5),
    "residual": layers.SandwichResidual(0.2),
}
# What a template stands for: one of them is at its default.
REPLACED = {
    "attention": {"attention_dropout", "kernel_initializer"},
    "feed_forward": {"activation", "activation_dropout", "kernel_initializer"},
    "residual": {"dropout", "normalize_first", "layer_norm_epsilon"},
    "norm": {"layer_norm_epsilon"},
}

CONFIGURED = [
    layers.MultiHeadAttention(
        3,
        4,
        value_dim=2,
        dropout=0.3,
        use_bias=False,
        output_shape=19,
        kernel_initializer="he_normal",
        bias_initializer="ones",
        kernel_regularizer="l2",
        bias_regularizer="l1",
        kernel_constraint="non_neg",
        bias_constraint="unit_norm",
        seed=23,
        num_key_value_heads=1,
        positions=layers.RotaryPositions(7.0, layers.Llama3Scaling(2.0, 1.5, 3.0, 99)),
        sliding_window=4,
        query_key_norm=layers.RMSNormalization(1e-3),
        scale=0.5,
    ),
    layers.FeedForward(17, "gelu", 0.3, use_bias=False, kernel_initializer="he_normal"),
    layers.Residual(0.3, True, 1e-3),
    layers.Residual(0.3, True, norm=layers.RMSNormalization(1e-3)),
    layers.TokenEmbedding(
        13, 6, 1, scale=2.0, output_scale=0.5, output_bias=True, embeddings_initializer="he_normal"
    ),
    layers.LearnedPositions(5),
    layers.LSTMStack(2, 5, 0.3),
    layers.LuongAttention("he_normal"),
    layers.PatchEmbedding((2, 3), 5, "he_normal"),
    layers.ImagePreprocessing((2, 3), (0.1, 0.2), (0.3, 0.4), 0.5, "bicubic"),
    layers.SegmentEmbedding(3),
    layers.RelativePositionBias(3, 8, 20, bidirectional=False),
    layers.PositionalEncoding(max_wavelength=7.0, interleaved=False),
    *(cls(*sizes, **arguments) for cls, sizes in STACKS for arguments in (PLAIN, TEMPLATES)),
]


@pytest.mark.parametrize("layer", CONFIGURED, ids=lambda layer: type(layer).__name__)
def test_config_keeps_every_argument(layer):
    """Each is given a value that is not the default: what is lost on the way comes back as the default."""
    defaults = _default_config(type(layer), layer.get_config())
    config = type(layer).from_config(layer.get_config()).get_config()
    assert config == layer.get_config()
    unchanged = {k for k in config if config[k] == defaults.get(k, object()) and k in _arguments(layer)}
    excused = [plain if config.get(name) else {name} for name, plain in REPLACED.items()]
    assert not unchanged - set().union(*excused)


def _arguments(layer):
    keras_own = set(keras.layers.Layer().get_config())
    return set(layer.get_config()) - keras_own - {"num_layers", "num_heads", "d_ff", "key_dim", "max_length"}


def _default_config(cls, config):
    required = {
        layers.MultiHeadAttention: ("num_heads", "key_dim"),
        layers.FeedForward: ("d_ff",),
        layers.LearnedPositions: ("max_length",),
        layers.RelativePositionBias: ("num_heads",),
        layers.EncoderLayer: ("num_heads", "d_ff"),
        layers.DecoderLayer: ("num_heads", "d_ff"),
        layers.Encoder: ("num_layers", "num_heads", "d_ff"),
        layers.Decoder: ("num_layers", "num_heads", "d_ff"),
    }.get(cls, ())
    sizes = {layers.TokenEmbedding: (2, 3), layers.PatchEmbedding: (1, 1), layers.LSTMStack: (1, 1)}
    if cls in sizes:
        return cls(*sizes[cls]).get_config()
    return cls(*(config[name] or 3 for name in required)).get_config()


def test_dtype_policy_reaches_every_part():
    layer = layers.Decoder(2, 3, 17, dtype="mixed_bfloat16")
    layer.build((None, None, 6), (None, None, 6))
    policies = {part.dtype_policy.name for part in layer._flatten_layers() if part.name != "drop"}
    assert policies == {"mixed_bfloat16"}
    assert tree.flatten(layer.empty_cache(2, 5))[0].dtype == "bfloat16"
