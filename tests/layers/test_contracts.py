"""Every public layer keeps the contract of `tests/contracts.py`."""

import functools
import inspect
import itertools

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    check_layer_contract,
    check_refused,
    check_under_xla,
    normal,
    randomized,
    refuses,
    slow_but,
)
from keras import tree

from keras_transformer import layers

BATCH, TARGET_LEN, SOURCE_LEN, D_MODEL, MEMORY_FEATURES, VOCAB = 2, 5, 7, 6, 11, 13
MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])


def hidden():
    return normal(BATCH, TARGET_LEN, D_MODEL)


def memory():
    return normal(BATCH, SOURCE_LEN, MEMORY_FEATURES)


def other():
    return normal(BATCH, TARGET_LEN, D_MODEL, seed=1)


def case(kind, *arguments, inputs=(hidden,), **options):
    """Functions that make a layer of these arguments and more, and its inputs."""
    return lambda **more: kind(*arguments, **options, **more), lambda: [make() for make in inputs]


def attention(inputs=(hidden, memory), **options):
    return case(layers.MultiHeadAttention, 3, 5, inputs=inputs, value_dim=2, **options)


def stack(kind, *arguments, inputs=(hidden,), **options):
    return case(kind, *arguments, inputs=inputs, num_heads=3, d_ff=17, dropout=0.0, **options)


def experts(rate=0.0):
    return [layers.FeedForward(5, dropout=rate) for _ in range(3)]


CASES = {
    "attention": attention(),
    "attention_without_bias": attention(use_bias=False),
    "attention_output_shape": attention(output_shape=19),
    "attention_gated": attention(use_gate=True),
    "attention_separate_key": attention((hidden, memory, lambda: normal(BATCH, SOURCE_LEN, 3))),
    "positions": case(layers.PositionalEncoding),
    "positions_short_waves": case(layers.PositionalEncoding, max_wavelength=7.0),
    "positions_in_halves": case(layers.PositionalEncoding, interleaved=False),
    "dropout": case(layers.Dropout, 0.3),
    "stochastic_depth": case(layers.StochasticDepth, 0.3),
    "norm": case(layers.LayerNormalization),
    "feed_forward": case(layers.FeedForward, 17, "gelu"),
    "residual_post_norm": case(layers.Residual, 0.0, inputs=(hidden, other)),
    "residual_pre_norm": case(
        layers.Residual, 0.0, inputs=(hidden, other), normalize_first=True, layer_norm_epsilon=1e-3
    ),
    "encoder_layer": stack(layers.EncoderLayer),
    "encoder_layer_pre_norm": stack(layers.EncoderLayer, normalize_first=True, activation="gelu"),
    "encoder_pre_norm": stack(layers.Encoder, 2, normalize_first=True),
    "decoder_layer": stack(layers.DecoderLayer, inputs=(hidden, memory)),
    "decoder_pre_norm": stack(layers.Decoder, 2, inputs=(hidden, memory), normalize_first=True),
    # The values of these are compared with those of independent references in their own tests.
    "lstm": case(layers.LSTMStack, 2, 7),
    "luong_attention": case(
        layers.LuongAttention, inputs=(hidden, lambda: normal(BATCH, SOURCE_LEN, D_MODEL))
    ),
    "rms_norm": case(layers.RMSNormalization),
    "zero_centered_rms_norm": case(layers.ZeroCenteredRMSNormalization),
    "segments": case(
        layers.SegmentEmbedding,
        2,
        inputs=(hidden, lambda: np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], "int32")),
    ),
    "learned_positions": case(layers.LearnedPositions, 7),
    "rotary": case(layers.RotaryPositions, scaling=layers.LinearScaling(2.0)),
    "gated_feed_forward": case(layers.GatedFeedForward, 17),
    "experts": case(lambda **more: layers.MixtureOfExperts(experts(), **more)),
    "sandwich": case(layers.Residual, 0.0, True, inputs=(hidden, other), sandwich_norm=True, norm="rms"),
    "attention_of_parts": attention(
        num_key_value_heads=1, positions=layers.ALiBi(), sliding_window=2, query_key_norm="rms", scale=0.3
    ),
    "pooling": case(layers.Pooling, "attention"),
    "class_token": case(layers.ClassToken, "he_normal"),
    "projection": case(layers.Projection, "...x,xy->...y", 7, bias_axes="y"),
    "decoder_of_parts": case(lambda **more: decoder_of_parts(**more)),
}


def decoder_of_parts(**kwargs):
    """A stack of layers of parts that are handed in, each with its own."""

    def layer():
        positions = layers.RelativePositionBias(2, 8, 5, bidirectional=False)
        return layers.DecoderLayer(
            attention=layers.MultiHeadAttention(2, 3, positions=positions, **kwargs),
            feed_forward=layers.GatedFeedForward(17, **kwargs), dropout=0.0, normalize_first=True, norm="rms",
            layer_norm_epsilon=1e-5, **kwargs,
        )  # fmt: skip

    return layers.Decoder([layer(), layer()], **kwargs)


# Bfloat16 keeps 8 bits: what a stack adds up and normalises again may be off by more than one layer.
DEEP = ("encoder_pre_norm", "decoder_pre_norm", "decoder_of_parts")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_layer_keeps_the_contract(case, tmp_path):
    make_layer, make_inputs = CASES[case]
    tolerance = 0.15 if case in DEEP else 0.06
    mask = None if case in ("pooling", "class_token") else MASK  # test_pooling.py
    check_layer_contract(make_layer, make_inputs, tmp_path, mask=mask, bfloat16=tolerance)


@pytest.mark.slow
@pytest.mark.tensorflow  # JAX knows XLA alone, and the test above runs it
@pytest.mark.parametrize("case", CASES)
def test_layer_is_the_same_under_xla(case):
    check_under_xla(*CASES[case], MASK)


def embeddings(**kwargs):
    """All parts of what goes in, each with an option of its own."""
    positions, segments = layers.LearnedPositions(7, offset=1, **kwargs), layers.SegmentEmbedding(**kwargs)
    parts = {"segments": segments, "norm": layers.RMSNormalization(**kwargs), "embedding_dim": 4}
    return layers.Embeddings(VOCAB, D_MODEL, positions, **parts, dropout=0.0, pad_id=0, **kwargs)


@pytest.mark.parametrize(
    "make", [lambda **kwargs: layers.TokenEmbedding(VOCAB, D_MODEL, pad_id=0, **kwargs), embeddings]
)
def test_embedding_keeps_the_contract(make, tmp_path):
    check_layer_contract(make, lambda: [np.array([[3, 12, 5, 1, 7], [4, 2, 9, 0, 0]], "int32")], tmp_path)


def model_of(layer, arrays):
    """A functional model around one layer, with weights that hide nothing, and its inputs."""
    inputs = [keras.Input(a.shape[1:], dtype=a.dtype) for a in arrays]
    model = keras.Model(inputs, tree.flatten(layer(*inputs))[0])
    randomized(layer)
    return model


WITH_SUBLAYERS = [case for case in CASES if case not in ("norm", "dropout", "rotary")]
EACH_CASE = pytest.mark.parametrize("case", slow_but(("attention", "decoder_of_parts"), WITH_SUBLAYERS))


@pytest.mark.parametrize("case", ["decoder_layer", "decoder_pre_norm", "attention"])
def test_building_changes_no_configuration(case):
    """What a layer makes when it is built it makes again, in the same order."""
    make_layer, make_inputs = CASES[case]
    layer = make_layer()
    before = layer.get_config()
    layer(*make_inputs())
    assert layer.get_config() == before


@EACH_CASE
def test_a_frozen_layer_stays_so_in_a_file_and_in_a_clone(case, tmp_path):
    make_layer, make_inputs = CASES[case]
    arrays = make_inputs()
    model = model_of(make_layer(trainable=False), arrays)
    assert model.trainable_weights == []
    model.save(tmp_path / "model.keras")
    loaded, clone = keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (loaded, clone):
        assert other.trainable_weights == [] and len(other.weights) == len(model.weights)
        assert_close(other(arrays), model(arrays), 1e-6)


@EACH_CASE
@pytest.mark.slow
def test_a_quantized_layer_computes_and_saves_the_same_but_for_rounding(case, tmp_path):
    make_layer, make_inputs = CASES[case]
    arrays = make_inputs()
    model = model_of(make_layer(), arrays)
    expected = as_numpy(model(arrays))
    model.quantize("int8")
    found = as_numpy(model(arrays))
    # Each number is off by at most 1/254 of the largest one, each product of 6 to 17 terms by about a hundredth.
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] >= 0.999
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(arrays), found, 1e-5)


@EACH_CASE
def test_low_rank_adapters_start_as_nothing_and_are_saved(case, tmp_path):
    make_layer, make_inputs = CASES[case]
    arrays = make_inputs()
    model = model_of(make_layer(), arrays)
    projections = [part for part in model._flatten_layers() if isinstance(part, layers.Projection)]
    expected = as_numpy(model(arrays))
    for projection in projections:
        projection.enable_lora(2)
    assert_close(model(arrays), expected, 1e-6)
    assert all(
        not projection.kernel.trainable for projection in projections if hasattr(projection.kernel, "path")
    )
    for projection in projections:
        projection.lora_kernel_b.assign(0.1 + projection.lora_kernel_b)
    found = as_numpy(model(arrays))
    assert np.abs(found - expected).max() > 1e-3 or not projections
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(arrays), found, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["feed_forward", "gated_feed_forward", "encoder_layer", "experts", "rms_norm"]
)
def test_time_distributed_is_the_layer_frame_by_frame(case):
    layer, frames = CASES[case][0](), normal(BATCH, 3, TARGET_LEN, D_MODEL)
    layer.build((None, TARGET_LEN, D_MODEL))
    randomized(layer)
    found = keras.layers.TimeDistributed(layer)(frames)
    for i in range(3):
        assert_close(found[:, i], layer(frames[:, i]))


def test_every_public_layer_is_in_the_contract():
    public = {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }
    checked = {type(make()) for make, _ in CASES.values()} | {layers.TokenEmbedding, layers.Embeddings}
    parts_of_attention = {layers.ALiBi, layers.AttentionPositions, layers.RelativePositionBias}
    parts_of_attention |= {layers.RelativeGridBias}
    # test_images.py, test_patches.py, test_grids.py
    of_images = {layers.ImagePreprocessing, layers.PatchEmbedding, layers.Patches, layers.GridPositions}
    of_audio = {layers.ConvolutionalSubsampling, layers.LogMelSpectrogram}  # test_audio.py
    assert checked == public - parts_of_attention - of_images - of_audio


PLAIN = {
    "num_heads": 3, "d_ff": 17, "dropout": 0.3, "activation": "gelu", "normalize_first": True,
    "layer_norm_epsilon": 1e-3, "key_dim": 5, "norm": "rms", "sandwich_norm": True, "input_norm": False,
    "attention_dropout": 0.2, "activation_dropout": 0.4, "stochastic_depth": 0.25, "kernel_initializer": "he_normal",
}  # fmt: skip
PARTS = {
    "attention": layers.MultiHeadAttention(3, 2, positions=layers.ALiBi()),
    "feed_forward": layers.GatedFeedForward(5),
}
# The cases of the contract are configured, too. These have parts, or arguments that those have not.
CONFIGURED = [
    layers.MultiHeadAttention(
        3, 4, positions=layers.RotaryPositions(7.0, layers.Llama3Scaling(2.0, 1.5, 3.0, 99))
    ),
    layers.MultiHeadAttention(3, 4, kernel_regularizer="l2", kernel_constraint="non_neg", seed=23),
    layers.MixtureOfExperts([layers.FeedForward(5)] * 2, 1, 0.5, kernel_initializer="he_normal"),
    layers.TokenEmbedding(13, 6, 1, scale=2.0, output_scale=0.5, output_bias=True),
    layers.PatchEmbedding((2, 3), 5, "he_normal", (1, 2)),
    layers.Patches((2, 3, 4), 2),
    layers.GridPositions((2, 3), 100.0),
    layers.RelativeGridBias(3, (2, 3)),
    layers.ImagePreprocessing((2, 3), (0.1, 0.2), (0.3, 0.4), 0.5, "bicubic"),
    layers.LogMelSpectrogram(5, 8000, 64, 20, 50.0, 3000.0, min_power=1e-8, top_db=60.0),
    layers.ConvolutionalSubsampling(6, (5, 3), (2, 2), "relu", "causal", layers.LearnedPositions(7), 0.3),
    layers.RelativePositionBias(3, 8, 20, bidirectional=False),
    *(cls(**PLAIN) for cls in (layers.EncoderLayer, layers.DecoderLayer)),
    *(cls(2, **PLAIN) for cls in (layers.Encoder, layers.Decoder)),
    *(cls(**PARTS, dropout=0.3) for cls in (layers.EncoderLayer, layers.DecoderLayer)),
    layers.DecoderLayer(**PARTS, cross_attention=layers.MultiHeadAttention(2, 3), dropout=0.3),
    layers.Encoder([layers.EncoderLayer(3, 5), layers.EncoderLayer(3, 7)]),
    layers.Decoder([layers.DecoderLayer(3, 5), layers.DecoderLayer(3, 7)]),
]


@pytest.mark.parametrize("layer", CONFIGURED, ids=lambda layer: type(layer).__name__)
def test_config_comes_back_whole(layer):
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config


def test_every_argument_of_a_constructor_is_in_the_config():
    for layer in (*CONFIGURED, *(make() for name, (make, _) in CASES.items() if name != "projection")):
        parameters = inspect.signature(type(layer).__init__).parameters.values()
        own = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        assert own - {"self"} <= layer.get_config().keys(), type(layer)


def test_dtype_policy_reaches_every_part():
    layer = layers.Decoder(2, 3, 17, dtype="mixed_bfloat16")
    layer.build((None, None, 6), (None, None, 6))
    policies = {part.dtype_policy.name for part in layer._flatten_layers() if part.name != "drop"}
    assert policies == {"mixed_bfloat16"}
    assert tree.flatten(layer.empty_cache(2, 5))[0].dtype == "bfloat16"


# Arguments that are right, and sets of others that are not.
WRONG = {
    layers.MultiHeadAttention: (
        {"num_heads": 6, "key_dim": 4}, {"sliding_window": 0}, {"num_heads": 6, "num_key_value_heads": 4},
        {"query_key_norm": "batch"}, {"positions": layers.PositionalEncoding()},
    ),
    layers.MixtureOfExperts: (
        {"experts": experts()}, {"top_k": 4}, {"top_k": 0}, {"experts": []}, {"experts": layers.FeedForward(5)},
        {"experts": ["relu"] * 2}, {"experts": [layers.FeedForward] * 2},
    ),
    layers.Residual: (
        {}, {"norm": "batch"}, {"norm": layers.RMSNormalization}, {"sandwich_norm": True}, {"input_norm": False}
    ),
    layers.LayerNormalization: ({}, {"epsilon": -1}),
    layers.RMSNormalization: ({}, {"epsilon": -1}),
    layers.TokenEmbedding: ({"vocab_size": 7, "d_model": 5}, {"mask_zero": True}, {"reverse_dtype": "float64"}),
    layers.RotaryPositions: ({}, {"scaling": "linear"}),
    layers.LinearScaling: ({"factor": 1}, {"factor": -1}),
    layers.Llama3Scaling: ({"factor": 8.0}, {"low_frequency_factor": 4.0, "high_frequency_factor": 4.0}),
    layers.YarnScaling: (
        {"factor": 1.0}, {"factor": 0.0}, {"original_max_length": 0}, {"fast": -1.0}, {"attention_factor": 0.0}
    ),
    layers.PatchEmbedding: (
        {"patch_size": 2, "d_model": 3}, {"patch_size": 0}, {"patch_size": ()}, {"patch_size": (2, 1.5)},
        {"strides": 3}, {"strides": (1, 0)}, {"strides": (1, 1, 1)},
    ),
    layers.ImagePreprocessing: ({}, {"size": 0}, {"deviation": (0.5, 0.0)}, {"interpolation": "lanczos"}),
    layers.LogMelSpectrogram: (
        {}, *({name: 0} for name in ("num_mel_bins", "sampling_rate", "fft_length", "sequence_stride")),
        *({name: 0.0} for name in ("min_power", "top_db", "max_freq")),
        {"min_freq": -1.0}, {"max_freq": 8001.0}, {"min_freq": 4000.0, "max_freq": 4000.0},
    ),
    layers.ConvolutionalSubsampling: (
        {"filters": 3}, {"filters": 0}, {"kernel_sizes": (3, 0)}, {"strides": (0, 1)}, {"strides": (1, 2, 2)},
        {"padding": "full"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_named(kind):
    right, *wrong = WRONG[kind]
    check_refused(kind, *wrong, **right)


def test_positions_that_do_not_fit_their_attention_are_refused():
    for key_dim, positions, received in (
        (5, layers.RotaryPositions(), "key_dim=5"),
        (4, layers.RelativePositionBias(2), "num_heads=6, biases=2"),
    ):
        refuses(received, layers.MultiHeadAttention, 6, key_dim, positions=positions)


DROPPING = {
    "attention": (attention(dropout=0.5, seed=3)[0], attention()[0]),
    **{
        name: tuple(functools.partial(kind, 17, dropout=rate) for rate in (0.5, 0.0))
        for name, kind in (
            ("feed_forward", layers.FeedForward),
            ("gated_feed_forward", layers.GatedFeedForward),
        )
    },
    "experts": tuple(functools.partial(layers.MixtureOfExperts, experts(rate)) for rate in (0.5, 0.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DROPPING)
def test_dropout_acts_in_training_alone_and_kernels_are_drawn_apart(case):
    inputs = CASES[case][1]()
    dropping, plain = (make() for make in DROPPING[case])
    for layer in (dropping, plain):
        layer(*inputs)
        kernels = [as_numpy(w) for w in layer.weights if w.path.endswith("kernel")]
        drawn = [(a, b) for a, b in itertools.combinations(kernels, 2) if a.shape == b.shape]
        assert all(np.abs(a - b).max() > 0.01 for a, b in drawn)
        randomized(layer)
    expected = as_numpy(plain(*inputs))
    assert_close(dropping(*inputs), expected, 0.0)
    assert_close(plain(*inputs, training=True), expected, 0.0)
    assert np.abs(as_numpy(dropping(*inputs, training=True)) - expected).max() > 0.1
