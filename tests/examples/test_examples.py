import pathlib
import subprocess
import sys

import ask_export
import demo
import functional_model
import korean_corpus
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.runs import Recipe

ASK_EXPORT = pathlib.Path(demo.__file__).with_name("ask_export.py")
SMALL = Recipe(
    num_layers=1, d_model=32, num_heads=2, d_ff=64, vocab_size=300, batch_tokens=1024, learning_rate=5e-3,
    warmup_steps=10, epochs=1,
)  # fmt: skip


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


@pytest.mark.slow
def test_ask_export_translates_lines_and_arguments_as_the_translator_does(exported, translator, pairs):
    sentences = [korean for korean, _ in pairs[:3]]
    lines = ask(exported, stdin="".join(f"{sentence}\n" for sentence in sentences))
    assert lines.returncode == 0, lines.stderr
    translations, scores = zip(*(line.split("\t") for line in lines.stdout.splitlines()), strict=True)
    assert list(translations) == translator.translate(sentences)
    assert all(-50.0 < float(score) <= 0.0 for score in scores)
    assert ask(exported, *sentences).stdout == lines.stdout


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


def test_numbers_are_spelt_as_by_hand():
    by_hand = {0: "영", 11: "십일", 3005: "삼천오", 10_000: "만", 20_210: "이만이백십", 1_000_001: "백만일"}
    assert {number: functional_model.korean(number) for number in by_hand} == by_hand
