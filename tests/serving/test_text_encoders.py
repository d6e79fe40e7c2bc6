"""Classifiers, embedders and what compares texts: in Python and in the runtime of the server."""

import warnings

import numpy as np
import pytest
from alone import answers
from contracts import refuses, slow_but
from tiny_bert import bert

from keras_transformer.models.heads import (
    ClassificationHead,
    MaskedLanguageHead,
    MultipleChoiceHead,
    TaggingHead,
)
from keras_transformer.serving import Classifier, Embedder, Similarity, load, servable_of
from keras_transformer.text import ByteTokenizer, WordPieceTokenizer

TEXTS = ["ab", "", "one two three four", "한국어 문장", "  ", "ab"]
SECOND = ["ab", "x", "two", "문장", "", "ba"]
HOSTILE = [b"\xff\xfe\x00", b"\x00", b"a" * 100_000, "🎉".encode() * 50]


LABELS = ["bad", "so so", "good"]
MADE = {
    "classifier": lambda: Classifier(bert(ClassificationHead(3, labels=LABELS)), ByteTokenizer(), 32),
    "pairs": lambda: Classifier(bert(ClassificationHead(2)), ByteTokenizer(), 32, pairs=True),
    "embedder": lambda: Embedder(bert(), ByteTokenizer(), 32),
    "first": lambda: Embedder(bert(), ByteTokenizer(), 32, pooling="first"),
    "cosine": lambda: Similarity(bert(), ByteTokenizer(), 32),
    "regression": lambda: Similarity(bert(ClassificationHead(1)), ByteTokenizer(), 32),
}
PAIRS = ("pairs", "cosine", "regression")


@pytest.fixture(scope="module")
def make():
    """A function that makes each once, and says how many texts it reads."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = MADE[name]()
            made[name].sides = 2 if name in PAIRS else 1
        return made[name]

    return of


@pytest.fixture(params=MADE)
def servable(request, make):
    return make(request.param)


@pytest.fixture(scope="module")
def exported(make, tmp_path_factory):
    """A function that exports each once, saved and loaded."""
    paths = {}

    def of(name):
        if name not in paths:
            folder = tmp_path_factory.mktemp(name)
            make(name).save(folder / "saved")
            paths[name] = load(folder / "saved").export(folder / "model", batch_sizes=[1, 4], check=False)
        return paths[name]

    return of


def answered(servable, texts, second=SECOND, **options):
    sides = [texts, second[: len(texts)]][: servable.sides]
    if isinstance(servable, Classifier):
        return servable.classify(*sides, **options)
    if isinstance(servable, Embedder):
        return [vector.tolist() for vector in servable.embed(*sides, **options)]
    return servable.compare(*sides, **options)


def flat(rows):
    return [row[0] if isinstance(row, tuple) and isinstance(row[0], str) else "" for row in rows], [
        row[1] if isinstance(row, tuple) else row for row in rows
    ]


@pytest.mark.slow
def test_rows_stand_alone(servable):
    labels, numbers = flat(answered(servable, TEXTS, batch_size=4))
    for i in range(len(TEXTS)):
        label, number = flat(answered(servable, TEXTS[i : i + 1], SECOND[i:]))
        assert label == labels[i : i + 1]
        np.testing.assert_allclose(number, numbers[i : i + 1], atol=1e-5)
    assert len({str(np.round(each, 4)) for each in numbers}) > 3


@pytest.mark.slow
def test_answers_are_the_models(servable):
    text = "ab"
    ids = servable.tokenizer.tokenize(text).numpy().tolist()
    second = [*servable.tokenizer.tokenize(SECOND[0]).numpy().tolist(), 3] * (servable.sides == 2)
    model = servable.model
    inputs = {"token_ids": [[2, *ids, 3, *second]], "segment_ids": [[0] * (2 + len(ids)) + [1] * len(second)]}
    inputs = {name: np.array(value) for name, value in inputs.items()}
    (found,) = answered(servable, [text])
    if isinstance(servable, Classifier):
        logits = model(inputs).numpy()[0]
        shares = np.exp(logits) / np.exp(logits).sum()
        labels = LABELS if len(shares) == 3 else ["0", "1"]
        assert found[0] == labels[shares.argmax()]
        assert found[1] == pytest.approx(shares.max(), abs=1e-5)
    elif isinstance(servable, Embedder):
        vector = model.embed(inputs, servable.pooling).numpy()[0]
        np.testing.assert_allclose(found, vector / np.linalg.norm(vector), atol=1e-5)
    elif model.head is None:
        one, other = (
            model.embed(np.array([[2, *servable.tokenizer.tokenize(t).numpy(), 3]])).numpy()[0]
            for t in (text, SECOND[0])
        )
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found == pytest.approx(cosine, abs=1e-5)
    else:
        assert found == pytest.approx(float(model(inputs).numpy()[0, 0]), abs=1e-5)


@pytest.mark.parametrize("name", slow_but(("pairs",), ("classifier", "pairs", "cosine")))
def test_bad_texts_get_an_answer_and_change_no_other(name, make):
    servable = make(name)
    expected = flat(answered(servable, TEXTS))
    with pytest.warns(UserWarning, match="longer than `max_source_length`=32 tokens"):
        found = flat(answered(servable, [*TEXTS, *HOSTILE], [*SECOND, *HOSTILE]))
    assert found[0][: len(TEXTS)] == expected[0]
    np.testing.assert_allclose(found[1][: len(TEXTS)], expected[1], atol=1e-5)
    assert np.isfinite(found[1]).all()


@pytest.mark.slow
# The first state is the mean's export but for one operation, and a score the classifier's logit.
@pytest.mark.parametrize("name", ["classifier", "pairs", "embedder", "cosine"])
def test_answers_the_same_in_the_runtime_of_the_server(name, make, exported, tmp_path):
    servable = make(name)
    labels, numbers = flat(answered(servable, TEXTS))
    inputs = dict(zip(("text", "second"), [TEXTS, SECOND][: servable.sides], strict=False))
    found = answers(exported(name), tmp_path, **inputs)
    (key,) = {"probability", "vector", "score"} & found.keys()
    np.testing.assert_allclose(found[key], numbers, atol=1e-4)
    assert found.get("label", [""] * 6) == labels
    assert found["truncated"] == [False] * 6


@pytest.mark.slow
def test_all_classes_have_a_probability(exported, tmp_path):
    found = answers(exported("classifier"), tmp_path, "probabilities", text=[*TEXTS, "x" * 40])
    assert found["labels"] == [LABELS] * 7
    np.testing.assert_allclose(np.sum(found["probabilities"], axis=1), 1, atol=1e-5)
    assert found["truncated"] == [False] * 6 + [True]


@pytest.mark.slow
def test_a_compiled_export_answers_the_same(make, tmp_path):
    classifier = make("pairs")
    export = classifier.export(tmp_path / "model", xla=True, batch_sizes=[4], source_lengths=[8, 32])
    found = answers(export, tmp_path, xla=True, text=TEXTS, second=SECOND)
    labels, numbers = flat(classifier.classify(TEXTS, SECOND))
    assert found["label"] == labels
    np.testing.assert_allclose(found["probability"], numbers, atol=1e-4)


@pytest.mark.slow
def test_word_pieces_are_read_in_the_runtime_of_the_server(tmp_path):
    tokenizer = WordPieceTokenizer.train(["One two three four, naïve!"] * 9, 60)
    model = bert(ClassificationHead(2), tokenizer.vocab_size)
    classifier = Classifier(model, tokenizer)
    found = answers(classifier.export(tmp_path / "model", check=False), tmp_path, text=TEXTS)
    assert (found["label"], pytest.approx(found["probability"], abs=1e-4)) == flat(classifier.classify(TEXTS))


@pytest.mark.parametrize(
    ("head", "kind", "message"),
    [
        (TaggingHead(3), Classifier, "two or more classes"),
        (ClassificationHead(1), Classifier, "two or more classes"),
        (None, Classifier, "two or more classes"),
        (ClassificationHead(2), Similarity, "no head, or one of one class"),
        (MultipleChoiceHead(), Similarity, "no head, or one of one class"),
    ],
)
def test_another_head_is_refused(head, kind, message):
    refuses(message, kind, bert(head), ByteTokenizer(), 32)


def test_limits_and_pairs_are_checked(make):
    refuses(r"at most 40. Received: max_source_length=41", Embedder, bert(), ByteTokenizer(), 41)
    refuses("Received: 260 ids, vocab_size=100", Embedder, bert(vocab_size=100), ByteTokenizer(), 32)
    with pytest.raises(ValueError, match=r"`second` must have a text for each of `texts`. Received: 1 for 2"):
        make("pairs").classify(["a", "b"], ["c"])
    refuses("`second` must be given if the servable reads pairs", make("classifier").classify, ["a"], ["b"])
    refuses("pooling='sum'", Embedder, bert(), ByteTokenizer(), 32, pooling="sum")
    refuses(r"the model's `sep_id`. Received: 3, the model's is 7", Embedder, bert(sep_id=7), ByteTokenizer())
    refuses("`pairs` is for models that classify texts", servable_of, bert(), (ByteTokenizer(),), pairs=True)


@pytest.mark.slow
def test_texts_that_are_compared_are_cut_one_by_one():
    texts, long = ["x" * 20], ["x" * 31]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (same,) = MADE["cosine"]().compare(texts, texts)
    assert same == pytest.approx(1.0, abs=1e-5)
    with pytest.warns(UserWarning, match="1 of 1 texts"):
        MADE["cosine"]().compare(texts, long)
    with pytest.warns(UserWarning, match="1 of 1 texts"):
        MADE["pairs"]().classify(texts, texts)


def test_embedder_takes_a_model_with_a_masked_language_head():
    model = bert(MaskedLanguageHead())
    embedder = servable_of(model, (ByteTokenizer(),))
    assert type(embedder) is Embedder and embedder.max_source_length == 40
    ids = np.array([[2, *ByteTokenizer().tokenize("ab").numpy(), 3]])
    vector = model.embed(ids).numpy()[0]
    np.testing.assert_allclose(embedder.embed(["ab"])[0], vector / np.linalg.norm(vector), atol=1e-5)
    assert type(embedder.changed(max_source_length=9)) is Embedder
    assert embedder.changed(max_source_length=9).max_source_length == 9
