"""What the tests of bulk translation share, those of loading, and those of a server in the C++ runtime."""

import json
import shutil

import pytest


@pytest.fixture
def source(tmp_path):
    """Ten lines of different lengths."""
    path = tmp_path / "source"
    path.write_text("".join(f"{i} {'x' * (i * 7 % 10)}\n" for i in range(10)))
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a small saved translator, with two tokenizers of bytes."""
    from keras_transformer.models import Transformer
    from keras_transformer.serving import Translator
    from keras_transformer.text import ByteTokenizer

    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    folder = tmp_path_factory.mktemp("original") / "saved"
    Translator(model, ByteTokenizer(), ByteTokenizer()).save(folder)
    return folder


@pytest.fixture
def saved(original, tmp_path):
    """A copy of the folder without the hashes of its files, to be changed."""
    folder = shutil.copytree(original, tmp_path / "saved")
    description = json.loads((folder / "translator.json").read_text())
    del description["sha256"]
    (folder / "translator.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="session")
def program(made_once):
    """The path of the batching server, compiled."""
    from batching import build

    def compile(folder):
        folder.mkdir()
        build(folder)

    return made_once("batching_server", compile) / "batching_server"
