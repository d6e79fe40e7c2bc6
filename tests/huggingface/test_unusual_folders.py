"""Random folders of legal, unusual configurations and tokenizers: equal to transformers, or refused by name.

The environment variable UNUSUAL_FOLDERS is the number of folders of each kind; `unusual_models.py --folders 510` and
`unusual_tokenizers.py --folders 155` do the same and print what they find.
"""

import os

import pytest

pytest.importorskip("transformers", reason="transformers makes and reads the folders")
pytest.importorskip("torch", reason="transformers computes with PyTorch")

import unusual_models
import unusual_tokenizers

FOLDERS = int(os.environ.get("UNUSUAL_FOLDERS", "30"))
GOOD = ("equal", "refused", "illegal")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", range(FOLDERS))
def test_a_model_is_equal_or_refused(number):
    family, changes, outcome, sentence = unusual_models.try_folder(number)
    assert outcome in GOOD, (family, changes, sentence)


@pytest.mark.parametrize("number", range(FOLDERS))
def test_a_tokenizer_is_equal_or_refused(number):
    family, changes, outcome, sentence = unusual_tokenizers.try_folder(number)
    assert outcome in GOOD, (family, changes, sentence)
