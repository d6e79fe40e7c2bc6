"""Spectrograms, and convolutions that shorten them: values by hand, padding that changes nothing, and files."""

import warnings

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    check_compiled,
    check_compiled_with_mask,
    check_config,
    check_layer_contract,
    check_saved_file,
    check_summary,
    check_symbolic_shapes,
    compilations,
    in_one_piece,
    mask_of,
    normal,
    randomized,
    refuses,
    with_mask,
)
from keras import ops

from keras_transformer import layers
from keras_transformer.layers import ConvolutionalSubsampling, LogMelSpectrogram
from keras_transformer.models import EncoderDecoder


def sound(samples=1987, rows=2, seed=0):
    """A rising tone in noise, whose rows are louder from one to the next."""
    rng, times = np.random.default_rng(seed), np.arange(samples) / 16000
    tones = np.sin(2 * np.pi * (300 + 9000 * times) * times) + 0.1 * rng.normal(size=(rows, samples))
    return (tones * 0.2 ** np.arange(rows, 0, -1)[:, None]).astype("float32")


# Spectrograms.


def by_the_definition(layer, audio):
    """Whisper's features in float64, frame by frame, with Slaney's mels."""
    size, step = layer.fft_length, layer.sequence_stride
    padded = np.pad(audio.astype("float64"), size // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    frames = [padded[i : i + size] * window for i in range(0, len(padded) - size + 1, step)][:-1]
    power = np.abs(np.fft.rfft(frames)) ** 2
    y = np.log10(np.maximum(power @ layer.filters, layer.min_power))
    return (np.maximum(y, y.max() - layer.top_db / 10) + 4) / 4


OTHER = {
    "num_mel_bins": 7, "sampling_rate": 8000, "fft_length": 33, "sequence_stride": 13, "min_freq": 50.0,
    "max_freq": 3000.0, "min_power": 1e-6, "top_db": 30.0,
}  # fmt: skip


@pytest.mark.parametrize(("options", "samples"), [({}, 1987), ({}, 1920), (OTHER, 1950)])
def test_features_are_those_of_the_definition(options, samples):
    layer, audio = LogMelSpectrogram(**options), sound(samples)
    expected = [by_the_definition(layer, row) for row in audio]
    np.testing.assert_allclose(as_numpy(layer(audio)), expected, atol=1e-4)


def test_features_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    audio = sound(7000, rows=3)
    there = transformers.WhisperFeatureExtractor()
    expected = there(list(audio), sampling_rate=16000, return_tensors="np")["input_features"]
    padded = np.pad(audio, ((0, 0), (0, 480_000 - 7000)))
    np.testing.assert_allclose(as_numpy(LogMelSpectrogram()(padded)), expected.transpose(0, 2, 1), atol=1e-4)


def test_filters_by_hand():
    """Mels are 200 / 3 Hz up to the 15th, at 1,000 Hz. The 27 after it multiply the hertz by 6.4."""
    low = LogMelSpectrogram(3, 2000, 8, 2)
    np.testing.assert_allclose(low.filters, np.eye(5)[:, 1:4] * 2 / 500, atol=1e-12)
    filters = LogMelSpectrogram(41, 16000, 16000, 160, max_freq=6400.0).filters  # a bin for each hertz
    mels = np.arange(43)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    np.testing.assert_allclose(filters.argmax(axis=0), edges[1:-1], atol=1.0)
    np.testing.assert_allclose(filters.sum(axis=0), 1.0, atol=1e-3)
    half_way = 1000 + (edges[16] - 1000) / 2
    found = np.interp(half_way, np.arange(8001), filters[:, 14])
    np.testing.assert_allclose(found, 1 / (edges[16] - edges[14]), rtol=1e-6)


def test_silence_is_the_least_power():
    np.testing.assert_allclose(as_numpy(LogMelSpectrogram()(np.zeros((1, 400), "float32"))), -1.5, rtol=1e-6)


def test_a_row_depends_on_no_other_row():
    layer, audio = LogMelSpectrogram(), sound(rows=3)
    whole = layer(audio)
    for i in range(3):
        assert_close(whole[i], layer(audio[i : i + 1])[0], 1e-5)
    assert np.ptp(as_numpy(ops.max(whole, axis=(1, 2)))) > 0.3


def test_masked_samples_are_silence_and_their_frames_are_masked():
    layer, audio = LogMelSpectrogram(), sound(1600)
    real = np.arange(1600) < np.array([[1600], [801]])
    expected = layer(np.where(real, audio, 0.0).astype("float32"))
    noisy = np.where(real, audio, np.nan).astype("float32")
    found = layer(with_mask(ops.convert_to_tensor(noisy), real))
    assert_close(found, expected, 1e-6)
    assert as_numpy(mask_of(found)).sum(axis=1).tolist() == [10, 6]
    assert_close(layer(noisy, mask=real), expected, 1e-6)
    assert mask_of(layer(audio)) is None


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_spectrograms_in_files_and_graphs(dtype, tmp_path):
    layer, audio = LogMelSpectrogram(dtype=dtype), sound(960)
    expected = layer(audio)
    assert keras.backend.standardize_dtype(expected.dtype) == "float32"
    assert_close(expected, LogMelSpectrogram()(audio), 1e-6)
    check_config(layer)
    check_saved_file(layer, [audio], expected, tmp_path)
    check_symbolic_shapes(lambda: LogMelSpectrogram(dtype=dtype), [audio], expected)
    check_summary(layer, [ops.convert_to_tensor(audio)])
    for jit_compile in compilations():
        check_compiled(layer, [ops.convert_to_tensor(audio)], expected, jit_compile)


@pytest.mark.parametrize("options", [{}, {"fft_length": 33, "sequence_stride": 13}])
def test_the_number_of_frames_is_known_before_a_call(options):
    layer = LogMelSpectrogram(num_mel_bins=3, **options)
    for samples in (201, 320, 325):
        expected = tuple(layer(np.ones((1, samples), "float32")).shape)
        assert layer.compute_output_shape((1, samples)) == expected
    assert layer.compute_output_shape((None, None)) == (None, None, 3)


@pytest.mark.parametrize(
    ("audio", "received"),
    [
        (np.ones((2, 500), "int16"), "dtype='int16'"),
        (np.ones((500,), "float32"), r"shape=\(500,\)"),
        (np.ones((2, 200), "float32"), r"shape=\(2, 200\)"),
    ],
)
def test_other_audio_is_refused(audio, received):
    refuses(rf"`audio` must be floats .* more than 200 samples.*{received}", LogMelSpectrogram(), audio)


# Convolutions.


FRAMES = normal(3, 11, 5)
REAL = np.arange(11) < np.array([[11], [6], [1]])


def subsampling(padding="same", **options):
    options = {"positions": layers.LearnedPositions(13), "dropout": 0.0, **options}
    layer = ConvolutionalSubsampling(6, padding=padding, **options)
    layer.build((None, None, 5))
    return randomized(layer)


@pytest.mark.parametrize(
    ("padding", "expected"), [("same", [3, 9, 9]), ("causal", [1, 6, 12]), ("valid", [6, 12])]
)
def test_sums_of_three_frames_by_hand(padding, expected):
    layer = ConvolutionalSubsampling(1, (3,), (2,), "linear", padding, dropout=0.0)
    layer.build((None, None, 1))
    layer.set_weights([np.ones((3, 1, 1)), np.array([10.0])])
    found = as_numpy(layer(np.arange(1.0, 6.0, dtype="float32").reshape(1, 5, 1)))
    assert found[0, :, 0].tolist() == [each + 10 for each in expected]


def test_the_activation_is_the_exact_gelu_after_each_convolution():
    layer = ConvolutionalSubsampling(1, (1, 1), (1, 1), dropout=0.0)
    layer.build((None, None, 1))
    layer.set_weights([np.ones((1, 1, 1)), np.zeros(1)] * 2)
    gelu = keras.activations.gelu
    assert_close(
        layer(FRAMES[..., :1]), gelu(gelu(FRAMES[..., :1], approximate=False), approximate=False), 1e-6
    )


@pytest.mark.parametrize(
    "options", [{}, {"kernel_sizes": (4, 1, 3), "strides": (2, 1, 2)}], ids=["two", "three"]
)
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_padding_changes_no_real_frame(padding, options):
    layer = subsampling(padding, **options)
    padded = np.where(REAL[..., None], FRAMES, np.nan).astype("float32")
    found = layer(with_mask(ops.convert_to_tensor(padded), REAL))
    kept = as_numpy(mask_of(found))
    assert kept.shape == found.shape[:2]
    for i, length in enumerate(REAL.sum(axis=1)):
        count = layer.compute_output_shape((1, length, 5))[1]
        assert kept[i].tolist() == [j < count for j in range(found.shape[1])]
        if count > 0:  # without zeros around it, a row may be shorter than a kernel
            assert_close(found[i : i + 1, :count], layer(FRAMES[i : i + 1, :length]), 1e-6)
    assert mask_of(layer(FRAMES)) is None


def test_subsampling_keeps_the_contract(tmp_path):
    def make(**kwargs):
        positions = layers.LearnedPositions(13, **kwargs)
        return ConvolutionalSubsampling(6, positions=positions, dropout=0.0, **kwargs)

    check_layer_contract(make, lambda: [FRAMES], tmp_path)


def test_masked_frames_are_the_same_in_a_graph():
    layer = subsampling()
    for jit_compile in compilations():
        check_compiled_with_mask(layer, [ops.convert_to_tensor(FRAMES)], REAL, jit_compile)


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_no_more_frames_than_positions(padding):
    layer = subsampling(padding, kernel_sizes=(5, 3), strides=(3, 2), positions=layers.LearnedPositions(2))
    longest = layer.max_length
    assert longest == {"same": 12, "causal": 12, "valid": 22}[padding]
    assert layer(np.ones((1, longest, 5), "float32")).shape == (1, 2, 6)
    refuses("`x` must be at most max_length=2 long", layer, np.ones((1, longest + 1, 5), "float32"))
    assert subsampling(padding, positions=None).max_length is None


def listener(dropout=0.0):
    """A model that reads frames, whose padding is zeros."""
    source = keras.Sequential(
        [
            keras.layers.Masking(0.0),
            ConvolutionalSubsampling(6, positions=layers.PositionalEncoding(), dropout=0.0),
        ]
    )
    source.build((None, None, 5))
    target = layers.Embeddings(11, 6, layers.PositionalEncoding(), dropout=dropout)
    stacks = (kind(1, 3, 17, dropout=0.0) for kind in (layers.Encoder, layers.Decoder))
    encoder, decoder = stacks
    return randomized(EncoderDecoder(source, encoder, target, decoder))


TARGET = np.array([[2, 5, 9], [2, 7, 3], [2, 4, 6]], "int32")


def test_padded_frames_change_no_output_of_a_model():
    model, length = in_one_piece(listener()), 6
    padded = np.concatenate([FRAMES[:, :length], np.zeros((3, 3, 5), "float32")], axis=1)
    found, expected = (model({"source": x, "target": TARGET}) for x in (padded, FRAMES[:, :length]))
    assert_close(found, expected, 1e-5)


@pytest.mark.slow
def test_an_int8_model_keeps_its_convolutions_in_floats(tmp_path):
    model, inputs = listener(), {"source": FRAMES, "target": TARGET}
    expected = as_numpy(in_one_piece(model)(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without matrices
        model.quantize("int8")
    found = as_numpy(in_one_piece(model)(inputs))
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] >= 0.999
    subsampled = model.source.layers[-1]
    assert [each.quantization_mode for each in subsampled.convolutions] == [None, None]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(in_one_piece(again)(inputs), found, 1e-5)


def test_sound_goes_to_states_in_one_functional_model(tmp_path):
    audio = keras.Input((None,))
    frames = LogMelSpectrogram(num_mel_bins=5)(audio)
    model = keras.Model(audio, subsampling(positions=layers.PositionalEncoding())(frames))
    samples = sound(3200)
    assert model(samples).shape == (2, 10, 6)
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (clone, keras.models.load_model(tmp_path / "model.keras")):
        assert_close(other(samples), model(samples), 1e-6)


def test_positions_inside_attention_are_refused():
    with pytest.raises(
        ValueError, match=r"`positions` of `ConvolutionalSubsampling` must be a layer .* `ALiBi`"
    ):
        ConvolutionalSubsampling(6, positions=layers.ALiBi())
    refuses(r"`frames` must have shape .* shape=\(None, 5\)", ConvolutionalSubsampling(6).build, (None, 5))
