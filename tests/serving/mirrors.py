"""What stands in for a translator, files that it translates, and folders that are changed."""

import json
import types

import keras
import numpy as np
import pytest

from keras_transformer.data import split_lines
from keras_transformer.execution import native
from keras_transformer.serving import Translator, translate_file


class Letters:
    """Stands in for a tokenizer: a token a byte."""

    content = b"letters"

    def tokenize(self, texts):
        lengths = np.array([len(text) for text in texts])
        return types.SimpleNamespace(row_lengths=lambda: types.SimpleNamespace(numpy=lambda: lengths))


class Mirror(Translator):
    """Stands in for a translator: writes each text backwards, and remembers its batches."""

    def __init__(self, act=None, **described):
        self.act = act or (lambda texts: None)
        self.batches = []
        self.max_source_length = 50
        self.source_start, self.source_end, self.target_start = (), (3,), ()
        self.max_length, self.strategy, self.constraints = None, "greedy", []
        self.model = types.SimpleNamespace(get_config=dict, weights=[keras.Variable(np.zeros(3))])
        self.source_tokenizer = self.target_tokenizer = Letters()
        vars(self).update(described)

    def describe(self):
        names = ("strategy", "constraints", "max_source_length", "max_length")
        return {name: getattr(self, name) for name in names}

    def translate_batch(self, texts):
        self.batches.append(texts)
        self.act(texts)
        return [text.decode("utf-8", "replace")[::-1] for text in texts]


def mirrored(content):
    return "".join(f"{line.decode()[::-1]}\n" for line in split_lines(content)).encode()


def quiet(line):
    pass


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def begun(source, output, windows=2, **options):
    """Leaves the state of a process that was stopped after a few windows of three lines."""

    def stop(texts):
        if len(mirror.batches) > windows:
            raise KeyboardInterrupt

    mirror = Mirror(stop)
    with pytest.raises(KeyboardInterrupt):
        translate_file(mirror, source, output, batch_size=3, window=3, say=quiet, **options)
    assert not output.exists()


def resume(source, output, mirror=None, **options):
    """Translates the rest of a file, and returns the path of the output."""
    options = {"batch_size": 3, "window": 3, "say": quiet, **options}
    translate_file(mirror or Mirror(), source, output, **options)
    return output


def change_description(folder, changes=None, **arguments):
    """Changes keys of translator.json, and arguments of the translator in it."""
    path = folder / Translator.DESCRIPTION
    description = json.loads(path.read_text())
    description["arguments"] |= arguments
    path.write_text(json.dumps({**description, **(changes or {})}))


def call(function, **inputs):
    """Returns what a function of a signature answers, a dict of arrays."""
    with native.optimized_quickly(passes=0):  # to optimize a function takes longer than to run it
        return {name: value.numpy() for name, value in function(**inputs).items()}
