"""The recurrent model behind the interface of the Transformer: the same searches, scores and files."""

import keras
import numpy as np
import pytest
from cases import D_MODEL, PAD, PAIR, SOURCE, TARGET
from cases import recurrent as small
from contracts import as_numpy, assert_close
from reference import lstm, softmax, under, weights_of

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import RecurrentSeq2Seq


def reference(weights, source, target):
    """The model of one row without padding, from the paper: logits and attention weights."""
    target_table = weights["target/tokens/embeddings"]
    tables = weights.get("source/tokens/embeddings", target_table), target_table
    scale = np.sqrt(D_MODEL)
    h, s = (table[ids] * scale for table, ids in zip(tables, (source, target), strict=True))
    for i in range(2):
        of_encoder, of_decoder = (
            under(weights, f"{side}/layer_{i}/lstm_cell") for side in ("encoder", "decoder")
        )
        h, last = lstm(of_encoder, h, np.zeros(D_MODEL), np.zeros(D_MODEL))
        s, _ = lstm(of_decoder, s, *last)
    shares = softmax(s @ h.T, np.ones((len(s), len(h)), bool))
    attended = np.tanh(np.concatenate([shares @ h, s], axis=1) @ weights["attention/projection/kernel"])
    return attended @ target_table.T, shares


@pytest.mark.slow
def test_logits_and_attention_agree_with_numpy():
    model = small()
    logits, scores = model(PAIR, return_attention_scores=True)
    assert_close(logits, model(PAIR), 0.0)
    (cross,) = scores.pop("cross")
    assert scores == {"encoder": [], "decoder": []}
    assert cross.shape == (3, 1, 5, 7)
    for row in range(3):
        n, m = (SOURCE[row] != PAD).sum(), (TARGET[row] != PAD).sum()
        expected, shares = reference(weights_of(model), SOURCE[row, :n], TARGET[row, :m])
        np.testing.assert_allclose(as_numpy(logits)[row, :m], expected, atol=1e-5)
        np.testing.assert_allclose(as_numpy(cross)[row, 0, :m, :n], shares, atol=1e-5)
        assert np.all(as_numpy(cross)[row, 0, :, n:] == 0)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_it_trains_on_batches_and_an_export_translates_as_it_does(tmp_path):
    import tensorflow as tf

    from keras_transformer.data import Batches
    from keras_transformer.serving import Translator
    from keras_transformer.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    pairs = [(word, word[::-1]) for word in ("ab", "abc", "bca", "cab", "a", "ca")] * 20
    batches = Batches(pairs, tokenizer, batch_tokens=64, max_length=8)
    keras.utils.set_random_seed(2)
    model = RecurrentSeq2Seq(tokenizer.vocab_size, num_layers=1, d_model=24, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.02), MaskedCrossentropy())
    model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=40, verbose=0)
    texts = ["abc", "", "ca", "a", "bca"]
    for strategy, precision in ((Greedy(), "int8"), (Beam(3), "float32")):
        translator = Translator(model, tokenizer, strategy=strategy, max_source_length=16)
        expected = translator.translate(texts)
        assert expected[1] == "" and expected[0] == "cba"
        translator.export(tmp_path / precision, precision=precision)
        served = tf.saved_model.load(str(tmp_path / precision / "1")).signatures["serving_default"]
        found = [text.decode() for text in served(text=tf.constant(texts))["translation"].numpy()]
        assert precision == "int8" or found == expected
        assert found[:2] == ["cba", ""]
