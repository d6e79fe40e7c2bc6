"""The examples of the model families, each run to its end on a few rows."""

import caption_shapes
import character_model
import chatbot_korean
import classify_korean
import fine_tune
import hear_numbers
import keras
import korean_corpus
import numpy as np
import pytest
import tag_spaces
import time_series
import vision_shapes
from tiny_bert import ids_of, new_bert, write_bert

from keras_transformer.data import read_table
from keras_transformer.huggingface import from_huggingface, tokenizers_from_huggingface
from keras_transformer.layers import Encoder
from keras_transformer.serving import load
from keras_transformer.text import WordPieceTokenizer

WORDS = {"0": ("밥", "날씨"), "1": ("이별", "눈물"), "2": ("고백", "사랑")}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV of questions whose words tell the label, one with a comma, one label with blanks."""
    path = tmp_path_factory.mktemp("table") / "talk.csv"
    rows = [
        f'"{first} {second}, {i}번",{first} 대답 {i},{label}'
        for label, words in WORDS.items()
        for first in words
        for second in words
        for i in range(12)
    ]
    rows[-1] += "   "
    path.write_text("\n".join(["Q,A,label", *rows]) + "\n", encoding="utf-8")
    return path


def run(example, capsys, *arguments):
    """What an example prints, line by line."""
    example.main([str(argument) for argument in arguments])
    return capsys.readouterr().out.split("\n")


@pytest.mark.slow
def test_character_model_holds_out_the_end_of_a_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"line {i}\n" for i in range(40)), encoding="utf-8")
    lines, held_out = character_model.of_file(path)
    assert held_out == ["line 38", "line 39"]
    assert lines == [f"line {i}" for i in range(38)]
    generated, new = map(set, character_model.generated())
    assert len(generated) == character_model.TRAIN and not generated & new
    assert " = ".join(korean_corpus.EXAMPLE) in new


def test_xz_is_measured_by_what_a_text_adds():
    lines = [f"{i * 7919 % 1000:03d}" for i in range(400)]
    assert 0 < character_model.xz_bits(lines, lines[:200]) < 1 < character_model.xz_bits([], lines)


def test_shapes_are_drawn_whole_and_told_apart():
    images, labels = vision_shapes.drawn(200, seed=0)
    assert images.shape == (200, 28, 28, 1) and images.dtype == "float32"
    assert set(labels) == set(range(len(vision_shapes.SHAPES)))
    grid = np.linspace(-1.5, 1.5, 601)
    x, y = np.meshgrid(grid, grid)
    areas = {name: np.mean(shape(x, y) < 1) * 9 for name, shape in vision_shapes.SHAPES.items()}
    by_hand = {"circle": np.pi * 0.9**2, "square": 1.5**2}
    by_hand |= {"triangle": 3 * 3**0.5 * 0.55**2, "cross": 5 * (2 * 0.95 / 3) ** 2}
    assert areas == pytest.approx(by_hand, rel=0.02)
    for shape in vision_shapes.SHAPES.values():  # inside the radius that is left for it
        assert (shape(x, y) >= 1)[np.hypot(x, y) > 1.12].all()


def test_sentences_say_what_is_drawn_where():
    images, sentences = caption_shapes.drawn(60, seed=0)
    assert images.shape == (60, 32, 32, 3) and images.dtype == "uint8"
    side = caption_shapes.SIZE // 2
    for image, sentence in zip(images, sentences, strict=True):
        _, first, _, *_, second, _ = sentence.split()
        halves = (slice(None), slice(side)) if "left of" in sentence else (slice(side), slice(None))
        others = tuple(slice(side, None) if each.stop == side else each for each in halves)
        for colour, half in ((first, halves), (second, others)):
            shades = image[half].reshape(-1, 3).astype(int)
            distances = {
                name: abs(shades - shade).sum(axis=1).min() for name, shade in caption_shapes.COLOURS.items()
            }
            assert min(distances, key=distances.get) == colour


def test_numbers_have_words_and_each_voice_its_own_sound():
    named = {0: "zero", 13: "thirteen", 40: "forty", 101: "one hundred one", 999: "nine hundred ninety nine"}
    assert {number: hear_numbers.words_of(number) for number in named} == named
    assert {word for n in range(1000) for word in hear_numbers.words_of(n).split()} == {*hear_numbers.WORDS}
    short, again, long = hear_numbers.recorded([2, 2, 777], seed=0)
    assert len(short) < len(long) < hear_numbers.SECONDS * hear_numbers.RATE
    assert 0.1 < abs(short).max() <= 1 and (len(short) != len(again) or (short != again).any())
    np.testing.assert_array_equal(hear_numbers.recorded([2], seed=0)[0], short)


@pytest.fixture(scope="module")
def checkpoint(table, tmp_path_factory):
    """A small BERT without a head, of random weights, as a folder of Hugging Face."""
    keras.utils.set_random_seed(0)
    tokenizer = WordPieceTokenizer.train([text for text, _ in read_table(table, "Q", "A")], 200)
    encoder = Encoder(1, 2, 64, dropout=0.1, activation="gelu", layer_norm_epsilon=1e-12)
    model = new_bert(None, tokenizer.vocab_size, 32, 24, encoder, **ids_of(tokenizer))
    return write_bert(model, tokenizer, tmp_path_factory.mktemp("checkpoints") / "bert")


@pytest.mark.slow
def test_lora_trains_few_weights_and_the_checkpoint_has_them(checkpoint, table, tmp_path, capsys):
    output = tmp_path / "tuned"
    lines = run(
        *(fine_tune, capsys, "--checkpoint", checkpoint, "--data", table, "--text", "Q"),
        *("--output", output, "--epochs", 1, "--lora", 2),
    )
    assert "of them trained" in lines[0]
    tuned, written = load(output / "classifier").model, from_huggingface(output / "huggingface")
    before = from_huggingface(checkpoint)
    first = [model.encoder.layers[0].self_attention for model in (tuned, written, before)]
    kernels = [np.asarray(attention.query_dense.kernel) for attention in first]
    np.testing.assert_allclose(kernels[0], kernels[1], atol=1e-6)
    assert np.abs(kernels[1] - kernels[2]).max() > 1e-6
    keys = [np.asarray(attention.key_dense.kernel) for attention in first]
    np.testing.assert_array_equal(keys[0], keys[2])


@pytest.mark.slow
def test_fine_tuning_writes_a_classifier_and_a_checkpoint_that_agree(
    checkpoint, table, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(fine_tune, "BATCH_SIZE", 8)
    output = tmp_path / "tuned"
    named = ["--text", "Q", "--label", "label", "--output", output]
    options = ["--checkpoint", checkpoint, "--data", table, "--epochs", 6, "--learning-rate", 3e-3]
    lines = run(fine_tune, capsys, *options, *named)
    assert "14 new texts: accuracy 100.0%" in lines[1]
    classifier = load(output / "classifier")
    answers = classifier.classify(["밥 날씨", "이별", "고백"])
    assert [label for label, _ in answers] == ["0", "1", "2"]

    again = from_huggingface(output / "huggingface")
    for ours, theirs in zip(classifier.model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (tokenizer,) = tokenizers_from_huggingface(output / "huggingface")
    assert tokenizer.content == classifier.tokenizer.content


EXAMPLES = [
    chatbot_korean, classify_korean, character_model, vision_shapes, caption_shapes, hear_numbers, fine_tune,
    time_series, tag_spaces,
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_output_that_is_there_is_refused_before_anything_is_trained(example, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        example.main(["--output", str(tmp_path)])
    assert f"{tmp_path} exists: name a new folder with --output." in capsys.readouterr().err


@pytest.mark.parametrize("example", [chatbot_korean, classify_korean])
def test_missing_data_is_named_with_where_to_get_it(example, tmp_path, capsys):
    missing = tmp_path / "missing.csv"
    with pytest.raises(SystemExit, match="2"):
        example.main(["--data", str(missing), "--output", str(tmp_path / "new")])
    error = capsys.readouterr().err
    assert f"Cannot read {missing}" in error and "github.com/songys/Chatbot_data" in error
    assert not (tmp_path / "new").exists()


def test_fine_tuning_refuses_what_is_no_checkpoint(table, tmp_path, capsys):
    arguments = ["--checkpoint", tmp_path, "--data", table, "--text", "Q", "--output", tmp_path / "new"]
    with pytest.raises(SystemExit, match="2"):
        fine_tune.main([str(argument) for argument in arguments])
    assert "config.json" in capsys.readouterr().err
