"""What the tests of commands share."""

import pytest


@pytest.fixture
def traced(translator, monkeypatch):
    """Lets commands load the translator of the tests, whose graph is traced already."""
    from keras_transformer.serving import Translator

    monkeypatch.setattr(Translator, "load", lambda folder: translator)
    return translator
