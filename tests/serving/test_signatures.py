"""The functions of an export: each says what the model says, whatever stands beside a row."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from mirrors import call

from keras_transformer.decoding import Beam, MinLength, Sample
from keras_transformer.execution import native
from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.serving.signatures import CHARACTERS_PER_TOKEN, as_called
from keras_transformer.serving.translator import TranslatorSignatures
from keras_transformer.text import ByteTokenizer

N = 3


@pytest.fixture(scope="module")
def beam(translator):
    """The translator of the tests with a beam, and short limits that odd texts reach."""
    return Translator(*[translator.model, *translator.tokenizers], Beam(4, n_best=N), 21, 17)


@pytest.fixture(scope="module")
def functions(beam):
    return TranslatorSignatures(beam, [2, 5]).functions()  # seven texts are three batches


@pytest.fixture(scope="module")
def texts(pairs):
    return [*(source for source, _ in pairs[:5]), "", "저는 " * 30]


def ids_of(beam, text):
    """What the model reads of a text."""
    ids = beam.source_tokenizer.tokenize([text])[0].numpy().tolist()
    return [*ids[: beam.max_source_length - 1], 3]


@pytest.fixture(scope="module")
def alone(beam, texts):
    """The model's own hypotheses of each text, searched alone; None for the empty text."""
    found = []
    for text in texts:
        ids = ids_of(beam, text)
        hypotheses = beam.model.generate([ids], beam.strategy, beam.max_length, jit_compile=False)
        found.append(hypotheses if text else None)
    return found


def decoded(found):
    return [text.decode() for text in np.ravel(found)]


def best(hypotheses, i=0):
    """The ids of a row's i-th hypothesis."""
    return hypotheses.tokens.numpy()[0, i, : int(hypotheses.lengths[0, i])]


@pytest.mark.slow
def test_n_best_has_all_hypotheses_and_serving_default_the_best(functions, beam, texts, alone):
    found, first = call(functions["n_best"], text=texts), call(functions["serving_default"], text=texts)
    assert first["translation"].tolist() == found["translations"][:, 0].tolist()
    assert len(set(first["translation"])) >= 6
    np.testing.assert_allclose(first["score"], found["scores"][:, 0], rtol=1e-4)
    assert first["score"][5] == 0.0 and first["truncated"].tolist() == found["truncated"].tolist()
    assert found["translations"].shape == found["scores"].shape == (7, N)
    for row, hypotheses in enumerate(alone):
        if hypotheses is None:
            assert found["translations"][row].tolist() == [b""] * N
            continue
        expected = beam.target_tokenizer.detokenize([best(hypotheses, i) for i in range(N)]).numpy()
        assert found["translations"][row].tolist() == expected.tolist()
        np.testing.assert_allclose(found["scores"][row], hypotheses.scores[0], rtol=1e-4)
    assert found["truncated"].tolist() == [False] * 6 + [True]


@pytest.mark.slow
def test_alignment_names_the_pieces_and_what_they_attend_to(functions, beam, texts, alone):
    found = call(functions["alignment"], text=texts)
    for row, hypotheses in enumerate(alone):
        source, attention = found["source_pieces"][row], found["attention"][row]
        if hypotheses is None:
            assert not any(source) and not any(found["target_pieces"][row]) and not attention.any()
            continue
        ids, target = ids_of(beam, texts[row]), best(hypotheses)
        assert decoded(source)[: len(ids)] == beam.source_tokenizer.pieces(ids)
        assert not any(source[len(ids) :])
        assert decoded(found["target_pieces"][row])[: len(target)] == beam.target_tokenizer.pieces(target)
        expected = beam.model.score([ids], target[None], jit_compile=False).alignments[0]
        np.testing.assert_allclose(attention[: len(target), : len(ids)], expected, atol=1e-5)
        np.testing.assert_allclose(attention[: len(target)].sum(axis=-1), 1.0, rtol=1e-5)
        assert not attention[len(target) :].any() and not attention[:, len(ids) :].any()
    expected = call(functions["serving_default"], text=texts)
    assert found["translation"].tolist() == expected["translation"].tolist()


@pytest.mark.slow
def test_score_is_the_log_probability_of_a_given_translation(functions, beam, texts):
    targets = ["a", "", "I am a student.", "The", "\xff", "x", "long " * 20]
    found = call(functions["score"], text=texts, target=targets)
    for row, (text, target) in enumerate(zip(texts, targets, strict=True)):
        if not text:
            continue
        ids = beam.target_tokenizer.tokenize([target])[0].numpy().tolist()
        ids = [*ids[: beam.max_length - 1], 3]
        expected = beam.model.score([ids_of(beam, text)], [ids], jit_compile=False)
        np.testing.assert_allclose(found["score"][row], expected.scores[0], rtol=1e-4)
        np.testing.assert_allclose(
            found["token_scores"][row, : len(ids)], expected.token_scores[0], rtol=1e-3
        )
        assert decoded(found["target_pieces"][row])[: len(ids)] == beam.target_tokenizer.pieces(ids)
        assert not found["token_scores"][row, len(ids) :].any()
    assert found["truncated"].tolist() == [False] * 6 + [True]
    of_two = call(functions["score"], text=[texts[-1], texts[0]], target=["a", "long " * 20])
    assert of_two["truncated"].tolist() == [True, True]


@pytest.mark.slow
def test_ids_outside_the_vocabulary_are_read_as_unk(functions, beam, texts, alone):
    rows = [ids_of(beam, texts[0]), [9, 8, 3], [-5, 10**6, 3], [], [0, 7, 0, 3]]
    width = 30
    source = np.array([row + [0] * (width - len(row)) for row in rows], "int32")
    found = call(functions["tokens"], source=source)
    assert found["tokens"].shape[:2] == found["lengths"].shape == found["scores"].shape == (5, N)
    target = best(alone[0])
    assert found["lengths"][0, 0] == len(target)
    assert found["tokens"][0, 0, : len(target)].tolist() == target.tolist()
    as_unk = call(functions["tokens"], source=[[1, 1, 3]])
    assert as_unk["tokens"][0, 0].tolist() == found["tokens"][2, 0, : as_unk["tokens"].shape[-1]].tolist()
    assert not found["tokens"][3].any() and found["lengths"][3, 0] == 0
    assert found["lengths"][4, 0] > 0
    assert not found["truncated"].any()
    assert call(functions["tokens"], source=np.full((1, 22), 5))["truncated"].tolist() == [True]
    assert call(functions["tokens"], source=np.zeros((2, 0), "int32"))["lengths"].tolist() == [[0] * N] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serving_default", "n_best", "alignment"])
def test_a_request_of_no_rows_has_an_answer_of_none(functions, name):
    for value in call(functions[name], text=np.array([], "object")).values():
        assert value.shape[0] == 0


@pytest.mark.slow
def test_rows_stand_alone_in_every_signature(functions, texts):
    order = [6, 0, 5, 3, 3, 1]
    for name in ("serving_default", "n_best", "alignment"):
        whole = call(functions[name], text=texts)
        some = call(functions[name], text=[texts[i] for i in order])
        for key, value in some.items():
            other = whole[key][order]
            same = tuple(slice(0, min(a, b)) for a, b in zip(value.shape, other.shape, strict=True))
            if value.dtype == np.float32:
                np.testing.assert_allclose(value[same], other[same], atol=1e-4)
            else:
                assert value[same].tolist() == other[same].tolist(), (name, key)


@pytest.mark.slow
def test_text_past_the_limit_is_not_tokenised(beam):
    """A million characters cost no more than the limit's: the tokenizer sees the first of them alone."""
    limit = beam.max_source_length * CHARACTERS_PER_TOKEN
    seen = []

    class Recording(ByteTokenizer):
        def tokenize(self, strings):
            seen.append(tf.reduce_max(tf.strings.length(strings, unit="UTF8_CHAR")))
            return super().tokenize(strings)

    translator = Translator(
        small_model(), Recording(), max_source_length=beam.max_source_length, max_length=3
    )
    tf.config.run_functions_eagerly(True)
    try:
        TranslatorSignatures(translator, [2]).functions()["serving_default"](
            tf.constant(["가" * 10**6, "나"])
        )
    finally:
        tf.config.run_functions_eagerly(False)
    assert [int(length) for length in seen] == [limit]


def small_model():
    keras.utils.set_random_seed(1)
    return Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)


@pytest.mark.slow
def test_samples_differ_from_call_to_call_unless_they_have_a_seed():
    text = ["The same text."]
    for seed, differ in ((None, True), (4, False)):
        translator = Translator(small_model(), ByteTokenizer(), strategy=Sample(seed=seed), max_length=30)
        function = TranslatorSignatures(translator, [4]).functions()["serving_default"]
        found = {call(function, text=text)["translation"][0] for _ in range(3)}
        assert (len(found) > 1) == differ


@pytest.mark.slow
@pytest.mark.parametrize("constraints", [(), (MinLength(9),)])
def test_compiled_shapes_are_few_and_change_no_answer(constraints, monkeypatch):
    """A compiled search sees the batch sizes and lengths it was given, and no others."""
    translator = Translator(
        small_model(), ByteTokenizer(), max_source_length=24, max_length=9, constraints=constraints
    )
    texts = ["a", "bc", "", "d" * 11, "e" * 40, "f g"]
    shapes, compiled = set(), native.compiled

    def recorded(function, model, jit_compile):
        run = compiled(function, model, jit_compile)

        def search(source):
            tf.py_function(lambda shape: shapes.add(tuple(shape.numpy().tolist())), [tf.shape(source)], [])
            return run(source)

        return search

    plain = TranslatorSignatures(translator, [3]).functions()["serving_default"]
    expected = call(plain, text=texts)
    monkeypatch.setattr(native, "compiled", recorded)
    few = TranslatorSignatures(translator, [1, 3], [4, 24]).functions()["serving_default"]
    for rows in (texts, texts[:1], texts[1:3], texts[3:5]):
        found = call(few, text=rows)
        for name in ("translation", "truncated"):
            assert found[name].tolist() == [expected[name][texts.index(row)] for row in rows]
    assert shapes == {(3, 4), (3, 24), (1, 4)}


def test_a_compiled_step_without_ids_is_filled_up_with_its_last_row(translator):
    """The search of a picture of zeros may take longer than those of all pictures."""

    def least(pictures, sizes):
        return [tf.zeros_like(x) + tf.reduce_min(x) for x in (pictures, sizes)]

    step = TranslatorSignatures(translator, [4], [])._compiled_step(least)
    found = step(tf.constant([[[[7.0]]], [[[5.0]]], [[[6.0]]]]), tf.constant([3, 2, 1]))
    assert [x.numpy().ravel().tolist() for x in found] == [[5.0] * 3, [1] * 3]
    assert [x.shape[0] for x in step(tf.zeros((0, 1, 1, 1)), tf.zeros(0, tf.int32))] == [0, 0]


@pytest.mark.parametrize(
    ("name", "inputs"), [("serving_default", ["text"]), ("score", ["target", "text"]), ("options", [])]
)
def test_a_search_of_several_signatures_is_run_as_one_function(functions, texts, name, inputs):
    """The graph of `options` has a loop of its own, and what it draws depends on the graph."""
    called, function = as_called(functions[name]), functions[name].get_concrete_function()
    if not inputs:
        assert called is function
        return
    assert called is not function
    texts = {each: tf.constant(texts if each == "text" else texts[::-1]) for each in inputs}
    expected, found = call(function, **texts), call(called, **texts)
    for key, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[key], values, 1e-5, 1e-5)
        else:
            np.testing.assert_array_equal(found[key], values)
