"""`Embeddings`: what goes into a stack that reads ids is the sum of its parts, normalised."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized, refuses

from keras_transformer import layers
from keras_transformer.layers import Embeddings, LearnedPositions, PositionalEncoding, TokenEmbedding
from keras_transformer.models import EncoderDecoder

IDS = np.array([[5, 7, 3, 0], [4, 9, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 1, 1]], "int32")


def made(**options):
    parts = {
        "segments": layers.SegmentEmbedding(),
        "norm": layers.LayerNormalization(epsilon=1e-12),
        **options,
    }
    embeddings = Embeddings(11, 6, LearnedPositions(8), dropout=0.0, scale=3.0, **parts)
    embeddings.build((None, None))
    return randomized(embeddings)


def test_tokens_segments_and_positions_are_added_then_normalised():
    embeddings = made()
    tokens, segments, positions = (
        as_numpy(part.embeddings) for part in (embeddings.tokens, embeddings.segments, embeddings.positions)
    )
    total = 3.0 * tokens[IDS] + segments[SEGMENTS] + positions[:4]
    expected = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
    expected = expected * as_numpy(embeddings.norm.gamma) + as_numpy(embeddings.norm.beta)
    assert_close(embeddings(IDS, segment_ids=SEGMENTS), expected, 1e-5)


def test_tokens_alone_are_their_vectors():
    embeddings = Embeddings(11, 6)
    assert_close(embeddings(IDS), as_numpy(embeddings.tokens.embeddings)[IDS], 0.0)


def test_an_index_moves_the_positions():
    embeddings = made()
    whole = as_numpy(embeddings(IDS))
    assert_close(embeddings(IDS[:, 2:], index=2), whole[:, 2:], 1e-6)
    place = layers.Place(positions=np.array([3, 1]))
    assert_close(embeddings(IDS[:, [3, 1]], index=place), whole[:, [3, 1]], 1e-6)


def test_vectors_take_the_place_of_those_of_the_tokens():
    embeddings = made()
    assert_close(embeddings(IDS, vectors=embeddings.tokens(IDS)), embeddings(IDS), 0.0)
    assert np.abs(as_numpy(embeddings(IDS, vectors=normal(2, 4, 6))) - as_numpy(embeddings(IDS))).max() > 0.1


def test_two_embeddings_share_a_table():
    source = Embeddings(tokens=TokenEmbedding(11, 6))
    target = Embeddings(tokens=source.tokens, positions=PositionalEncoding(), dropout=0.0)
    assert (target.input_dim, target.output_dim) == (11, 6)
    assert_close(target(IDS), PositionalEncoding()(source(IDS)), 1e-6)
    assert target.weights == source.weights


def test_a_shared_table_is_one_in_a_clone_and_in_a_file(tmp_path):
    tokens = TokenEmbedding(11, 4)
    source, target = Embeddings(tokens=tokens), Embeddings(tokens=tokens, positions=LearnedPositions(7))
    model = EncoderDecoder(source, layers.Encoder(1, 2, 8), target, layers.Decoder(1, 2, 8))
    model.save(tmp_path / "model.keras")
    for again in (keras.models.clone_model(model), keras.models.load_model(tmp_path / "model.keras")):
        assert again.source.tokens is again.target.tokens and len(again.weights) == len(model.weights)
    assert_close(again({"source": IDS, "target": IDS}), model({"source": IDS, "target": IDS}), 1e-6)


def test_a_dense_layer_widens_narrower_embeddings():
    embeddings = made(embedding_dim=4)
    assert embeddings.tokens.embeddings.shape == (11, 4) and embeddings(IDS).shape == (2, 4, 6)
    narrow = as_numpy(embeddings.norm(embeddings.positions(embeddings.segments(embeddings.tokens(IDS)))))
    assert_close(embeddings(IDS), embeddings.widen(narrow), 1e-6)


def test_the_share_of_the_dropout_is_dropped_of_the_norm_in_training_alone():
    embeddings = Embeddings(11, 600, dropout=0.5, norm=layers.LayerNormalization())
    assert np.mean(as_numpy(embeddings(IDS)) == 0.0) < 0.01
    assert 0.4 < np.mean(as_numpy(embeddings(IDS, training=True)) == 0.0) < 0.6


@pytest.mark.parametrize(
    "parts", [{}, {"norm": layers.RMSNormalization(), "embedding_dim": 3}], ids=["", "all"]
)
def test_keras_hands_the_mask_of_padding_on(parts):
    inputs = keras.Input((None,), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(Embeddings(11, 6, pad_id=0, **parts)(inputs))
    model = keras.Model(inputs, pooled)
    assert_close(model(IDS)[1], model(IDS[1:, :2])[0], 1e-6)


def test_freezing_freezes_all_that_goes_in():
    embeddings = made(embedding_dim=4)
    embeddings.trainable = False
    assert len(embeddings.weights) == 7 and embeddings.trainable_weights == []


def test_int8_acts_on_the_table(tmp_path):
    model = keras.Sequential([keras.Input((None,), dtype="int32"), made()])
    expected = as_numpy(model(IDS))
    model.quantize("int8")
    assert model.layers[0].tokens.quantization_mode == "int8"
    found = as_numpy(model(IDS))
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(IDS), found, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_dim": 11}, "output_dim=None"),
        ({}, "input_dim=None"),
        ({"tokens": TokenEmbedding(11, 4), "input_dim": 11}, r"either `tokens` or \['input_dim'\]"),
        ({"tokens": TokenEmbedding(11, 4), "scale": 2.0}, r"either `tokens` or \['scale'\]"),
        ({"tokens": Embeddings(11, 4).tokens}, "must not be made by other `Embeddings`"),
        ({"tokens": keras.layers.Embedding(11, 4)}, "`tokens` must be a `TokenEmbedding`"),
        ({"input_dim": 11, "output_dim": 4, "norm": "rms"}, "`norm` must be a `Layer`"),
        *(
            ({"input_dim": 11, "output_dim": 4, "positions": kind()}, f"`{kind.__name__}` acts inside attention")
            for kind in (layers.RotaryPositions, layers.ALiBi)
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, message):
    refuses(message, Embeddings, **arguments)
