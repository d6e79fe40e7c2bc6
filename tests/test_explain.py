"""`kt.explain`: hand-worked cases, and properties that the methods' papers state."""

import keras
import numpy as np
import pytest
from contracts import refuses
from keras import ops
from tiny_bert import new_bert

from keras_transformer import explain, layers, models

PAD, EOS = 0, 3
SOURCE = np.array([[5, 7, 9, EOS], [6, EOS, PAD, PAD]])
TARGET = np.array([[4, 8, EOS], [10, EOS, PAD]])
CLASSES = np.array([1, 0])


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(7)
    return models.Transformer(13, num_layers=2, d_model=4, num_heads=2, d_ff=8, dropout=0.1)


@pytest.fixture(scope="module")
def recurrent():
    keras.utils.set_random_seed(7)
    return models.RecurrentSeq2Seq(13, num_layers=1, d_model=4)


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(11)
    encoder = layers.Encoder(2, num_heads=2, d_ff=8)
    model = new_bert(models.ClassificationHead(2), 13, 4, 6, encoder)
    for dense in (model.head.dense, model.pooler.dense):  # a fresh head hardly tells texts apart
        dense.kernel.assign(50 * dense.kernel)
    # Positions as large as tokens: else the norm turns sharply where the tokens' embeddings shrink to zeros.
    table = model.embeddings.positions.embeddings
    table.assign(40 * table)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", explain.METHODS)
def test_every_method_gives_a_value_for_each_token_and_none_for_padding(method, translator, classifier):
    values = explain.importances(translator, SOURCE, TARGET, method, steps=2)
    assert values.shape == (2, 3, 4)
    assert np.isfinite(values).all()
    assert not values[1, :, 2:].any()
    assert not values[1, 2].any()
    assert values[0].any(axis=0).all()
    values = explain.importances(classifier, SOURCE, CLASSES, method, steps=2)
    assert values.shape == (2, 4)
    assert not values[1, 2:].any()
    assert values[0].all()


@pytest.mark.parametrize("method", ["leave_one_out", "gradient_x_input", "attention", "rollout"])
def test_a_row_does_not_depend_on_its_neighbours(method, translator):
    together = explain.importances(translator, SOURCE, TARGET, method)
    alone = explain.importances(translator, SOURCE[1:, :2], TARGET[1:, :2], method)
    np.testing.assert_allclose(together[1:, :2, :2], alone, atol=1e-5)


@pytest.mark.slow
def test_leaving_a_token_out_costs_the_log_probability_that_score_says(translator):
    values = explain.importances(translator, SOURCE[:1], TARGET[:1])
    whole = translator.score(SOURCE[:1], TARGET[:1]).token_scores
    for i in range(4):
        hidden = SOURCE[:1].copy()
        hidden[0, i] = PAD
        less = translator.score(hidden, TARGET[:1]).token_scores
        np.testing.assert_allclose(values[0, :, i], ops.convert_to_numpy(whole - less)[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "translator"])
def test_integrated_gradients_are_complete(name, request):
    """Their sum is the log probability less that of embeddings of zeros (Sundararajan et al., proposition 1)."""
    model, target = request.getfixturevalue(name), {"classifier": CLASSES, "translator": TARGET}[name][:1]
    vectors = (model.embeddings.tokens if name == "classifier" else model.source.tokens)(SOURCE[:1])
    values = explain.importances(model, SOURCE[:1], target, "integrated_gradients", steps=100)
    ends = (explain._log_probs(model, SOURCE[:1], target, share * vectors) for share in (1.0, 0.0))
    expected = np.subtract(*map(ops.convert_to_numpy, ends)).ravel()
    np.testing.assert_allclose(values.sum(axis=-1).ravel(), expected, atol=3e-2)
    assert np.abs(values).max() > 0.1


@pytest.mark.slow
def test_gradient_times_input_is_the_slope_of_a_scale(classifier):
    """All embeddings times `1 + h` change the log probability by `h` times the sum of the values."""
    values = explain.importances(classifier, SOURCE[:1], CLASSES[:1], "gradient_x_input")
    vectors, h = classifier.embeddings.tokens(SOURCE[:1]), 1e-2
    more, less = (
        explain._log_probs(classifier, SOURCE[:1], CLASSES[:1], (1 + step) * vectors) for step in (h, -h)
    )
    slope = float(ops.convert_to_numpy(more - less).item() / (2 * h))
    assert values.sum() == pytest.approx(slope, abs=1e-2 * max(1, abs(slope)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["leave_one_out", "integrated_gradients"])
def test_long_texts_are_computed_in_parts(method, translator, monkeypatch):
    whole = explain.importances(translator, SOURCE, TARGET, method, steps=3)
    monkeypatch.setattr(explain, "ROWS_AT_ONCE", 2)
    parts = explain.importances(translator, SOURCE, TARGET, method, steps=3)
    np.testing.assert_allclose(parts, whole, atol=1e-5)


def test_rollout_multiplies_layers_with_their_residuals():
    """Two layers of one head, worked by hand: (A2 + I)/2 times (A1 + I)/2."""
    first = np.array([[[[0.0, 1.0], [1.0, 0.0]]]])
    second = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])
    np.testing.assert_allclose(explain.rollout([first, second]), [[[0.5, 0.5], [0.5, 0.5]]])
    third = np.array([[[[0.5, 0.5], [0.0, 1.0]]]])
    np.testing.assert_allclose(explain.rollout([third, second]), [[[0.75, 0.25], [0.375, 0.625]]])


def test_attention_is_that_of_the_scores(translator, classifier):
    inputs = {"source": SOURCE[:1], "target": np.array([[translator.bos_id, 4, 8]])}
    _, scores = translator(inputs, return_attention_scores=True)
    expected = ops.convert_to_numpy(scores["cross"][-1]).mean(axis=1)
    values = explain.importances(translator, SOURCE[:1], TARGET[:1], "attention")
    np.testing.assert_allclose(values, expected, atol=1e-6)
    _, scores = classifier(SOURCE[:1], return_attention_scores=True)
    expected = np.mean([ops.convert_to_numpy(layer)[:, :, 0].mean(axis=1) for layer in scores], axis=0)
    values = explain.importances(classifier, SOURCE[:1], CLASSES[:1], "mean_attention")
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_attention_to_frames_is_that_of_the_scores():
    source = layers.ConvolutionalSubsampling(8, positions=layers.PositionalEncoding())
    stacks = layers.Encoder(2, 2, 16), layers.Decoder(2, 2, 16)
    model = models.EncoderDecoder(source, stacks[0], layers.Embeddings(11, 8), stacks[1])
    frames = np.random.default_rng(0).normal(size=(2, 12, 5)).astype("float32")
    model({"source": frames, "target": TARGET})
    inputs = {
        "source": frames,
        "target": np.pad(TARGET[:, :-1], ((0, 0), (1, 0)), constant_values=model.bos_id),
    }
    _, scores = model(inputs, return_attention_scores=True)
    means = [ops.convert_to_numpy(layer).mean(axis=1) for layer in scores["cross"]]
    real = (model.pad_id != TARGET)[..., None]
    for method, expected in (
        ("attention", means[1]),
        ("mean_attention", (means[0] + means[1]) / 2),
        ("rollout", means[1] @ explain.rollout(scores["encoder"])),
    ):
        values = explain.importances(model, frames, TARGET, method)
        np.testing.assert_allclose(values, expected * real, atol=1e-6)
    with pytest.raises(ValueError, match="`method` must be one of attention, mean_attention and rollout"):
        explain.importances(model, frames, TARGET)
    refuses("`source` must have shape", explain.importances, model, frames, TARGET[:1], "attention")


def test_a_recurrent_model_has_no_rollout(recurrent):
    assert explain.importances(recurrent, SOURCE, TARGET, "leave_one_out").shape == (2, 3, 4)
    refuses("needs an encoder with attention", explain.importances, recurrent, SOURCE, TARGET, "rollout")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "guess"}, "`method` must be one of"),
        ({"steps": 0}, "`steps` must be"),
        ({"source": SOURCE[0]}, "`source` must have shape"),
        ({"target": TARGET[:1]}, "`target` `\\(batch, target_len\\)`"),
        ({"model": layers.FeedForward(3)}, "`model` must be an `EncoderDecoder`"),
    ],
)
def test_errors_name_the_argument(changes, message, translator):
    with pytest.raises(ValueError, match=message):
        explain.importances(**{"model": translator, "source": SOURCE, "target": TARGET, **changes})


@pytest.mark.tensorflow
@pytest.mark.tensorflow
def test_texts_are_explained_with_their_pieces():
    from keras_transformer import serving, text

    tokenizer = text.SentencePieceTokenizer.train(["a man runs", "a dog runs"] * 9, vocab_size=20)
    keras.utils.set_random_seed(7)
    model = models.Transformer(tokenizer.vocab_size, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    found = explain.explain_text(serving.Translator(model, tokenizer), "a dog runs", target="a man runs")
    assert found.values.shape == (len(found.written), len(found.read))
    assert "".join(found.read).replace("▁", " ").strip().startswith("a dog runs")

    encoder = layers.Encoder(1, num_heads=2, d_ff=8)
    model = models.EncoderModel(
        layers.Embeddings(tokenizer.vocab_size, 4, layers.LearnedPositions(20)), encoder,
        head=models.ClassificationHead(2, labels=["good", "bad"]),
    )  # fmt: skip
    classifier = serving.Classifier(model, tokenizer)
    found = explain.explain_text(classifier, "a dog runs", method="gradient_x_input")
    assert found.written == [classifier.classify(["a dog runs"])[0][0]]
    assert found.values.shape == (1, len(found.read))
    refuses("`target` must be one of", explain.explain_text, classifier, "a dog runs", target="ugly")
    refuses("`text` must be a str", explain.explain_text, classifier, " ")
