"""Commands load the trained run once for all tests: a search is traced once, too."""

import pathlib

import pytest


@pytest.fixture(autouse=True)
def run_loaded_once(request, monkeypatch):
    """Makes `Translator.load` return the shared translator for the folder of `tiny_run`."""
    if "tiny_run" not in request.fixturenames:
        return
    from keras_transformer.serving import Translator

    folder, translator = request.getfixturevalue("tiny_run"), request.getfixturevalue("translator")
    load = Translator.load.__func__

    def load_once(cls, path):
        return translator if pathlib.Path(path) == folder else load(cls, path)

    monkeypatch.setattr(Translator, "load", classmethod(load_once))
