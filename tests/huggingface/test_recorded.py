"""Compares models with the numbers and texts that transformers computed for the same weights (record.py)."""

import json

import numpy as np
import pytest
from record import CASES, RECORD, SEARCHES, WRITERS, own_numbers, own_texts

from keras_transformer.huggingface import FAMILIES

RECORDED, TEXTS = (json.loads(RECORD.read_text())[kind] for kind in ("numbers", "texts"))


def test_every_case_is_recorded_and_every_family_has_one():
    assert [*RECORDED] == [*CASES]
    assert all(any(name.startswith(family) for name in CASES) for family in FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_transformers(name):
    found = own_numbers(name)
    assert np.ptp(found) > 0.1
    np.testing.assert_allclose(found, RECORDED[name], atol=2e-4)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.slow
def test_texts_are_those_of_transformers(name, search):
    compared = [pair for pair in zip(own_texts(name, search), TEXTS[name][search], strict=True) if pair[1]]
    assert len(compared) > 2 and len({str(expected) for _, expected in compared}) > 2
    for found, expected in compared:
        assert found == expected
