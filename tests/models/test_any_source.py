"""A source may be anything that gives `(batch, source_len, d_model)`: features become text as ids do."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized, refuses

from keras_transformer import layers
from keras_transformer.decoding import Beam, Greedy, MinLength, NoRepeatNgram, Sample
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import EncoderDecoder, Ensemble

VOCAB, D_MODEL, PAD, EOS = 11, 6, 0, 3
TARGET = np.array([[2, 5, 9, 10], [2, 7, 3, 0], [2, 4, 6, 3]], "int32")
FRAMES = normal(3, 9, 4)  # (batch, frames, features)


def convolutions():
    """A small version of what reads a spectrogram: two convolutions, one of them with a stride."""
    return keras.Sequential(
        [
            keras.layers.Conv1D(D_MODEL, 3, padding="same", activation="gelu"),
            keras.layers.Conv1D(D_MODEL, 3, strides=2, padding="same", activation="gelu"),
            layers.PositionalEncoding(),
        ]
    )


def frames_with_padding():
    """Frames of zeros are padding, as Keras's own layer says."""
    return keras.Sequential([keras.layers.Masking(0.0), keras.layers.Dense(D_MODEL)])


def two_inputs():
    """A functional model of a nest: frames, and the number of their speaker."""
    frames, speaker = keras.Input((None, 4), name="frames"), keras.Input((), dtype="int32", name="speaker")
    x = keras.layers.Dense(D_MODEL)(frames)
    x = x + keras.layers.Embedding(3, D_MODEL)(speaker)[:, None]
    return keras.Model({"frames": frames, "speaker": speaker}, x)


SOURCES = {
    "convolutions": (convolutions, FRAMES),
    "nest": (two_inputs, {"frames": FRAMES, "speaker": np.array([0, 2, 1])}),
    "nothing": (keras.layers.Identity, normal(3, 5, D_MODEL)),
}
EACH_SOURCE = pytest.mark.parametrize(("make", "source"), SOURCES.values(), ids=SOURCES)


def model_of(make, source, seed=3):
    options = {"scale": 0.5, "dropout": 0.0, "output_bias": True}
    target = layers.Embeddings(VOCAB, D_MODEL, layers.PositionalEncoding(), **options)
    encoder, decoder = (kind(2, 3, 17, dropout=0.0) for kind in (layers.Encoder, layers.Decoder))
    model = EncoderDecoder(make(), encoder, target, decoder)
    model({"source": source, "target": TARGET})
    randomized(model, seed, 0.7)
    target.tokens.bias.assign(np.where(np.arange(VOCAB) == PAD, -100.0, target.tokens.bias))
    return model


@EACH_SOURCE
def test_greedy_search_is_that_of_full_passes(make, source):
    model = model_of(make, source)
    found = as_numpy(model.search(source, Greedy(), 5))
    target = np.full((3, 6), 2)
    for i in range(5):
        following = as_numpy(model({"source": source, "target": target[:, : i + 1]}))[:, -1].argmax(axis=-1)
        target[:, i + 1] = np.where((target == EOS).any(axis=1), PAD, following)
    np.testing.assert_array_equal(found.tokens[:, 0], target[:, 1:])
    scores = model.score(source, found.tokens, jit_compile=False)
    assert_close(scores.scores, found.scores, 1e-4)
    assert scores.alignments.shape[:3] == (3, 1, 5)


@pytest.mark.sampled
@EACH_SOURCE
@pytest.mark.parametrize("strategy", [Beam(3, n_best=2), Sample(seed=5)], ids=["beam", "sample"])
def test_rows_depend_on_no_other_row(make, source, strategy):
    model = model_of(make, source)
    options = {"max_length": 6, "constraints": [MinLength(3), NoRepeatNgram(2)], "jit_compile": False}
    whole = as_numpy(model.generate(source, strategy, **options))
    for i in range(3):
        copies = keras.tree.map_structure(lambda x, i=i: x[[i] * 3], source)
        alike = as_numpy(model.generate(copies, strategy, **options))
        for j in range(3):
            np.testing.assert_array_equal(alike.tokens[j], whole.tokens[i])
            assert_close(alike.scores[j], whole.scores[i], 1e-4)
    assert np.ptp(whole.scores[:, 0]) > 1e-2


def test_a_prefix_is_continued():
    model, prefix = model_of(convolutions, FRAMES), np.array([[5, 7], [4, 0], [9, 9]])
    found = as_numpy(model.search(FRAMES, Greedy(), 6, prefix=prefix, constraints=[MinLength(2)]).tokens)
    assert found[:, 0, 0].tolist() == [5, 4, 9] and found[[0, 2], 0, 1].tolist() == [7, 9]


def test_the_mask_of_the_source_hides_padding():
    model = model_of(frames_with_padding, FRAMES)
    padded = np.pad(FRAMES, ((0, 0), (0, 4), (0, 0)))
    found = [as_numpy(model.search(x, Sample(seed=1), 5).tokens) for x in (FRAMES, padded)]
    np.testing.assert_array_equal(*found)
    assert_close(*(model({"source": x, "target": TARGET}) for x in (FRAMES, padded)), 1e-5)


def test_ids_read_by_a_layer_of_keras_are_ids():
    """A `keras.layers.Embedding` that masks padding and `Embeddings` of the same table give the same."""
    ids = np.array([[5, 7, 3], [4, 3, 0], [9, 0, 0]], "int32")
    other = model_of(lambda: keras.layers.Embedding(VOCAB, D_MODEL, mask_zero=True), ids)
    embeddings = layers.Embeddings(VOCAB, D_MODEL, dropout=0.0)
    model = EncoderDecoder(embeddings, other.encoder, other.target, other.decoder)
    embeddings.tokens.embeddings.assign(other.source.embeddings)
    assert_close(*(each({"source": ids, "target": TARGET}) for each in (model, other)), 1e-6)
    found = [as_numpy(each.search(ids, Beam(2), 6).tokens) for each in (model, other)]
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
@EACH_SOURCE
def test_a_model_is_trained_and_saved(make, source, tmp_path):
    model = model_of(make, source)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy())
    inputs = {"source": source, "target": TARGET}
    losses = model.fit(inputs, np.roll(TARGET, -1, axis=1), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(inputs), model(inputs), 1e-6)
    found = (each.generate(source, Greedy(), 5).tokens for each in (model, again))
    np.testing.assert_array_equal(*map(as_numpy, found))


@pytest.mark.slow
def test_an_ensemble_writes_about_features():
    models = [model_of(convolutions, FRAMES, seed) for seed in (3, 4)]
    ensemble = Ensemble(models)
    logits = ensemble({"source": FRAMES, "target": TARGET})
    mean = np.mean(
        [keras.ops.softmax(model({"source": FRAMES, "target": TARGET})) for model in models], axis=0
    )
    assert_close(keras.ops.exp(logits), mean, 1e-5)
    assert ensemble.generate(FRAMES, Beam(2), 5).tokens.shape == (3, 1, 5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_an_int8_model_and_an_export_write_the_same(tmp_path):
    import tensorflow as tf

    model = model_of(convolutions, FRAMES)
    model.export(tmp_path / "export", verbose=False)
    exported, inputs = tf.saved_model.load(tmp_path / "export"), {"source": FRAMES, "target": TARGET}
    assert_close(exported.serve(inputs), model(inputs), 1e-5)
    search = tf.function(lambda source: model.search(source, Greedy(), 5))
    expected = as_numpy(model.generate(FRAMES, Greedy(), 5).tokens)
    np.testing.assert_array_equal(as_numpy(search(FRAMES).tokens), expected)
    model.quantize("int8")
    scores = as_numpy(model.generate(FRAMES, Greedy(), 5).scores)
    assert np.isfinite(scores).all()
    assert_close(model.score(FRAMES, model.generate(FRAMES, Greedy(), 5).tokens).scores, scores, 1e-3)


@pytest.mark.tensorflow
def test_a_translator_of_texts_needs_a_source_of_ids():
    from keras_transformer.serving import Translator
    from keras_transformer.text import ByteTokenizer

    with pytest.raises(ValueError, match=r"`model` must read ids.*Received: model=<EncoderDecoder"):
        Translator(model_of(convolutions, FRAMES), ByteTokenizer())


def test_what_needs_ids_is_refused():
    model = model_of(convolutions, FRAMES)
    refuses(r"`max_length` must be given.*Received: max_length=None", model.generate, FRAMES)
    refuses("needs `source_lengths`", model.generate, FRAMES, Greedy(), 5, constraints=[MinLength(ratio=0.5)])
    for wrong in (FRAMES[:0], {"a": FRAMES, "b": FRAMES[:2]}, np.float32(1.0)):
        with pytest.raises(ValueError, match="`source` must be a tensor or a nest of tensors, batch first"):
            model.generate(wrong, max_length=5)
    refuses("`vectors` need a source of ids", model.encode, FRAMES, vectors=FRAMES)
    narrow = model_of(convolutions, FRAMES)
    narrow.source = keras.layers.Dense(D_MODEL + 1)
    refuses(r"must give `\(batch, source_len, d_model\)`.*d_model=6", narrow.encode, FRAMES)
