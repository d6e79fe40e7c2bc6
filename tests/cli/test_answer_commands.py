"""`keras-transformer classify`, `embed` and `generate`: a line out for each line in."""

import json

import numpy as np
import pytest
from commands import assert_refused, run
from contracts import randomized
from tiny_bert import bert

from keras_transformer.layers import Decoder, Embeddings, LearnedPositions
from keras_transformer.models import LanguageModel
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving import Classifier, Embedder, TextGenerator
from keras_transformer.text import ByteTokenizer

LINES = ["one two", "", "한국어", "x" * 99, "a\tb"]
STDIN = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture(scope="module")
def classifier():
    return Classifier(bert(ClassificationHead(2, labels=["bad", "good"])), ByteTokenizer())


@pytest.fixture(scope="module")
def folders(classifier, tmp_path_factory):
    """The folder of each saved servable, by name."""
    base = tmp_path_factory.mktemp("saved")
    model = LanguageModel(Embeddings(260, 8, LearnedPositions(64)), Decoder(1, 2, 16, dropout=0.0))
    servables = {
        "classifier": classifier,
        "pairs": Classifier(classifier.model, ByteTokenizer(), pairs=True),
        "embedder": Embedder(bert(), ByteTokenizer()),
        "generator": TextGenerator(randomized(model, scale=0.3), ByteTokenizer(), max_length=5),
    }
    for name, servable in servables.items():
        servable.save(base / name)
    return base


def test_classify_prints_label_and_probability_and_warns_of_cut_lines(folders, classifier):
    code, out, err = run("classify", folders / "classifier", stdin=STDIN)
    found = [line.split("\t") for line in out.decode().splitlines()]
    with pytest.warns(UserWarning, match="1 of 5"):
        expected = classifier.classify(LINES)
    assert (code, [label for label, _ in found]) == (0, [label for label, _ in expected])
    np.testing.assert_allclose([float(p) for _, p in found], [p for _, p in expected], rtol=1e-4)
    assert (
        err
        == "warning: 1 of 5 lines are longer than --max-source-length=40 tokens; the rest of them is not read.\n"
    )


@pytest.mark.slow
def test_classify_prints_every_probability_as_json(folders):
    code, out, _ = run("classify", folders / "classifier", "--probabilities", "--batch-size", 2, stdin=STDIN)
    rows = [json.loads(line) for line in out.decode().splitlines()]
    assert code == 0 and [set(row) for row in rows] == [{"bad", "good"}] * 5
    np.testing.assert_allclose([sum(row.values()) for row in rows], 1, rtol=1e-5)


@pytest.mark.slow
def test_a_pair_without_a_tab_is_an_empty_line_and_an_exit_code(folders):
    code, out, err = run("classify", folders / "pairs", stdin=b"no tab\na\tb\n")
    lines = out.decode().splitlines()
    assert (code, lines[0]) == (4, "") and lines[1].split("\t")[0] in ("bad", "good")
    assert "line 1 failed and is left empty: A line must be `text<TAB>second`" in err


def test_embed_prints_vectors_or_writes_them_to_one_file(folders, tmp_path):
    code, out, _ = run("embed", folders / "embedder", stdin=STDIN)
    vectors = np.array([json.loads(line) for line in out.decode().splitlines()], "float32")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert code == 0 and vectors.shape == (5, 8)
    file = tmp_path / "vectors.npy"
    assert run("embed", folders / "embedder", "--output", file, stdin=STDIN)[:2] == (0, f"{file}\n".encode())
    found = np.load(file)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors, atol=1e-6)
    assert_refused(
        "embed", folders / "embedder", "--output", file, stdin=STDIN, named="--output must be a new file"
    )


@pytest.mark.slow
def test_generate_continues_each_line(folders):
    code, out, _ = run("generate", folders / "generator", "--max-length", 3, stdin=STDIN)
    generator = TextGenerator.load(folders / "generator")
    expected = generator.changed(max_length=3).generate(LINES)
    assert (code, out.decode().split("\n")[:-1]) == (0, [" ".join(text.splitlines()) for text in expected])


def test_a_folder_of_another_model_is_refused(folders):
    for command, name in (("embed", "classifier"), ("generate", "classifier"), ("classify", "embedder")):
        assert_refused(command, folders / name, stdin=STDIN, named="must hold a")
