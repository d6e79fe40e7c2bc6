"""The lines of docs/tune_labels.md that tune a classifier and a tagger, run from the files to a served answer."""

import json
import pathlib
import re
import shlex
import sys

import keras
import pytest
from commands import assert_refused, run

pytest.importorskip("tensorflow_serving")
from servers import SERVERS, Backend, ServedModel

from keras_transformer.huggingface import FAMILIES, to_huggingface
from keras_transformer.text import WordPieceTokenizer

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "tune_labels.md").read_text(encoding="utf-8")
BLOCKS = [
    block.splitlines() for block in re.findall(r"```\n(keras-transformer tune .*?)\n```", PAGE, re.DOTALL)
]
PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "a", "day", "night", "ada", "sings", "in", "bern", "bad",
]  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": len(PIECES), "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 16, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
REVIEWS = [
    f"{first} a {second} {last},{'bad' if 'bad' in second else 'good'}"
    for first in ("what", "in", "ada", "bern")
    for second in ("bad", "bad day", "day", "night")
    for last in ("day", "night", "in", "sings")
]
NAMES = "Ada B-PER\nsings O\nin O\nBern B-LOC\n\nin O\na O\nday O\nAda B-PER\n\nBern B-LOC\nsings O\n\n" * 12
# A small model learns with other numbers than a real one.
FASTER = ["--epochs", "20", "--learning-rate", "0.02", "--batch-size", "4", "--samples", "1"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    model = FAMILIES["bert"].make_model(BERT)
    to_huggingface(model, "path/to/bert", tokenizers=(WordPieceTokenizer(PIECES),), family="bert")
    for name in ("reviews", "test"):
        pathlib.Path(f"{name}.csv").write_text("\n".join(["text,label", *REVIEWS]))
    for name in ("names", "test"):
        pathlib.Path(f"{name}.conll").write_text(NAMES)


def answer_of(lines):
    """Runs the lines of a block, with a server of this process in place of Docker, and returns what each printed."""
    printed, model = {}, None
    for line in lines:
        if line.startswith("docker compose"):
            model = pathlib.Path(re.search(r"-f (\S+)/docker-compose.yml", line)[1])
            assert (model / "docker-compose.yml").is_file()
            continue
        text, _, command = line.rpartition("| ")
        _, name, *arguments = shlex.split(command)
        stdin = shlex.split(text)[1].encode() if text else b""
        if name == "tune":
            arguments += FASTER
        if name != "ask":
            code, out, err = run(name, *arguments, stdin=stdin)
        else:
            with SERVERS["http"](Backend({model.name: {1: ServedModel(model / "1")}})) as url:
                code, out, err = run(name, url, *arguments[1:], stdin=stdin)
        assert code == 0, f"{line}\n{err}"
        printed[name] = out.decode()
    return printed


def test_the_page_has_few_lines():
    classifier, tagger = BLOCKS
    assert len(classifier) <= 10 and len(tagger) <= 10
    assert "ask http://localhost:8501" in classifier[-1] and "--signature entities" in tagger[-1]


@pytest.mark.slow
def test_a_classifier_comes_from_a_table_and_answers_on_a_server(files, monkeypatch):
    printed = answer_of(BLOCKS[0])
    label, probability = printed["ask"].strip().split("\t")
    assert label == "good" and float(probability) > 0.5
    assert "accuracy 1.0000" in printed["evaluate"] and "bad" in printed["evaluate"]
    assert pathlib.Path("scores.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = run("classify", "my_classifier", stdin=b"what a day\n")
    assert code == 0 and out.decode().startswith("good\t")
    data = "evaluate", "my_classifier", "--data", "test.csv"
    assert_refused(*data, "--plot", "scores.png", named="must be a new file")
    assert_refused(*data, "--pairs", "test.csv", named="--data is the only file")
    assert_refused("evaluate", "my_classifier", "--plot", "other.png", named="give --data, too")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_refused(*data, "--plot", "other.png", named="--plot needs matplotlib")


@pytest.mark.slow
def test_a_tagger_comes_from_words_and_answers_on_a_server(files):
    printed = answer_of(BLOCKS[1])
    entities = json.loads(printed["ask"])
    expected = [
        {"word": "Ada", "label": "PER", "start": 0, "end": 3},
        {"word": "Bern", "label": "LOC", "start": 13, "end": 17},
    ]
    assert [{name: each[name] for name in expected[0]} for each in entities] == expected
    assert re.search(r"^all +1\.0000 +1\.0000 +1\.0000 +48$", printed["evaluate"], re.MULTILINE)
    code, out, _ = run("classify", "my_tagger", stdin=b"Ada sings in Bern\n")
    assert code == 0 and [each["word"] for each in json.loads(out)] == ["Ada", "Bern"]
    assert_refused("classify", "my_tagger", "--probabilities", named="must hold a Classifier.")
