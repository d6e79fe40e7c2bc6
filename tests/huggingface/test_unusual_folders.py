"""Random folders of legal, unusual configurations and tokenizers: equal to transformers, or refused by name.

The environment variable UNUSUAL_FOLDERS is the number of folders of each kind. The scripts that make them, in
benchmarks/unusual_checkpoints, make more of them and print what they find.
"""

import os
import pathlib
import sys

import pytest

pytest.importorskip("transformers", reason="transformers makes and reads the folders")
pytest.importorskip("torch", reason="transformers computes with PyTorch")
sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "unusual_checkpoints"))

import unusual_models
import unusual_tokenizers


@pytest.mark.slow
@pytest.mark.parametrize("number", range(int(os.environ.get("UNUSUAL_FOLDERS", "30"))))
@pytest.mark.parametrize("kind", [unusual_models, unusual_tokenizers], ids=["model", "tokenizer"])
def test_an_unusual_folder_is_equal_or_refused(kind, number):
    family, changes, outcome, sentence = kind.try_folder(number)
    assert outcome in ("equal", "refused", "illegal"), (family, changes, sentence)
