import pathlib
import subprocess
import sys
import types

import ask_export
import demo
import functional_model
import keras
import korean_corpus
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.runs import Recipe

ASK_EXPORT = pathlib.Path(demo.__file__).with_name("ask_export.py")
SMALL = Recipe(
    num_layers=1,
    d_model=32,
    num_heads=2,
    d_ff=64,
    vocab_size=300,
    batch_tokens=1024,
    learning_rate=5e-3,
    warmup_steps=10,
    epochs=1,
)


def distinct_colours(path):
    """The number of colours in a PNG, which must be one."""
    assert path.read_bytes().startswith(b"\x89PNG")
    pixels = matplotlib.image.imread(path)
    return len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0))


def ask(*arguments, stdin=""):
    command = [sys.executable, "-I", str(ASK_EXPORT), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", timeout=300)


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """The demo of a small recipe, as a function that runs it again in the same folder; and that folder."""
    output = tmp_path_factory.mktemp("demo")

    def again(exact_match, **replaced):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo, "TRAIN", 400)
            patch.setattr(demo, "VALIDATION", 20)
            patch.setattr(demo, "TEST", 20)
            patch.setattr(demo, "RECIPE", SMALL)
            patch.setattr(demo, "EXACT_MATCH", exact_match)
            for name, function in replaced.items():
                patch.setattr(demo, name, function)
            return demo.main(["--output", str(output), "--epochs", "1"])

    return again, output


@pytest.mark.slow
def test_demo_trains_exports_asks_and_draws_and_runs_again(small_demo, capsys):
    again, output = small_demo
    assert again(exact_match=0.0) == 0
    printed = capsys.readouterr().out
    assert all(f"  {sentence}  ->  " in printed for sentence in demo.SENTENCES)
    assert (output / "export" / "1" / "saved_model.pb").is_file()
    names = ("training_curves", "positions", "schedule", "attention")
    assert all(distinct_colours(output / "pictures" / f"{name}.png") > 50 for name in names)

    checkpoint, versions = next((output / "run").glob("checkpoint-*.keras")).read_bytes(), []
    # What scored once is not run again.
    known = {"evaluate": lambda *_: {"exact": 0.5, "bleu": 50.0, "chrf": 50.0}}
    stubs = {
        "export": lambda translator, folder: versions.append(folder) or folder,
        "ask": lambda version, sentences: sentences,
        "draw": lambda *_: None,
    }
    assert again(exact_match=0.5, **known, **stubs) == 0
    assert "nothing to do, 1 epochs are done" in capsys.readouterr().out
    assert next((output / "run").glob("checkpoint-*.keras")).read_bytes() == checkpoint
    assert versions == [output / "export"]

    assert again(exact_match=0.51, **known, **stubs) == 1
    assert "50.0% exact is less than 51%" in capsys.readouterr().err
    assert versions == [output / "export"]


@pytest.mark.slow
def test_demo_scores_sentences_that_neither_train_nor_choose_the_epoch(tmp_path):
    train_pairs, val_pairs, test_pairs = map(set, demo.corpus(tmp_path))
    assert (len(train_pairs), len(val_pairs), len(test_pairs)) == (demo.TRAIN, demo.VALIDATION, demo.TEST)
    assert not test_pairs & (train_pairs | val_pairs)
    assert korean_corpus.EXAMPLE in test_pairs


def test_demo_counts_exact_translations():
    stub = types.SimpleNamespace(translate=lambda sources: ["I am here.", "I am a", "I", "You."])
    pairs = list(zip("가나다라", ["I am here.", "I am a student.", "We", "You."], strict=True))
    assert demo.evaluate(stub, pairs)["exact"] == 0.5


def test_demo_exports_the_next_version(tmp_path):
    for name in ("2", "10", "notes"):
        (tmp_path / name).mkdir()
    stub = types.SimpleNamespace(export=lambda folder, version: (folder, version))
    assert demo.export(stub, tmp_path) == (tmp_path, 11)
    assert demo.export(stub, tmp_path / "new")[1] == 1


def test_demo_says_why_the_export_did_not_answer(tmp_path):
    with pytest.raises(RuntimeError, match=r"ask_export\.py failed: .*missing is not a folder"):
        demo.ask(tmp_path / "missing", ["저는 학생입니다."])


@pytest.mark.parametrize("lines", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_ask_export_translates_lines_and_arguments_as_the_translator_does(exported, translator, pairs, lines):
    sentences = [korean for korean, _ in pairs[:3]]
    expected = translator.translate(sentences)
    assert len(set(expected)) == 3
    if lines:
        answer = ask(exported, stdin="".join(f"{sentence}\n" for sentence in sentences))
    else:
        answer = ask(exported, *sentences)
    assert answer.returncode == 0, answer.stderr
    translations, scores = zip(*(line.split("\t") for line in answer.stdout.splitlines()), strict=True)
    assert list(translations) == expected
    assert all(-50.0 < float(score) <= 0.0 for score in scores)


def test_ask_export_refuses_what_is_no_export(exported, tmp_path, capsys):
    assert ask_export.main([str(tmp_path / "missing"), "저는"]) == 2
    assert capsys.readouterr() == ("", f"ask_export: error: {tmp_path / 'missing'} is not a folder.\n")

    assert ask_export.main([str(exported.parent), "저는"]) == 2
    expected = f"holds no SavedModel. Its versions are 1: name one, {exported}."
    assert expected in capsys.readouterr().err

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "saved_model.pb").write_bytes(b"not a graph")
    with pytest.raises(ValueError, match="damaged cannot be loaded"):
        ask_export.load(tmp_path / "damaged")

    echo = tf.function(lambda text: {"echo": text}, input_signature=[tf.TensorSpec((None,), tf.string)])
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"), signatures={"serving_default": echo})
    with pytest.raises(ValueError, match="other holds a SavedModel, but no translator"):
        ask_export.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("number", "spelt"),
    [
        (0, "영"),
        (1, "일"),
        (10, "십"),
        (11, "십일"),
        (3005, "삼천오"),
        (10_000, "만"),
        (20_210, "이만이백십"),
        (110_000, "십일만"),
        (1_000_001, "백만일"),
        (9_999_999, "구백구십구만구천구백구십구"),
    ],
)
def test_numbers_are_spelt_as_by_hand(number, spelt):
    assert functional_model.korean(number) == spelt


@pytest.mark.slow
def test_functional_model_reads_numbers_it_never_saw_and_ignores_padding(tmp_path):
    keras.utils.set_random_seed(1)
    numbers = np.random.default_rng(1).permutation(1000)
    train_numbers, held_out = numbers[:850].tolist(), numbers[850:].tolist()
    model = functional_model.train(train_numbers, epochs=25, d_model=32, num_layers=1, d_ff=64)
    texts = [functional_model.korean(number) for number in held_out]
    answers = functional_model.read(model, texts)
    assert np.mean([answer == str(n) for answer, n in zip(answers, held_out, strict=True)]) >= 0.9

    inputs, _ = functional_model.examples(held_out)
    logits = model(inputs)
    padded = {**inputs, "source": np.pad(inputs["source"], ((0, 0), (0, 5)))}
    np.testing.assert_allclose(model(padded), logits, atol=1e-4)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(inputs), logits, atol=1e-5)
