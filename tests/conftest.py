"""What several folders of tests share: a small corpus, a tokenizer of it and a trained run."""

import collections
import ctypes
import fcntl
import gc
import os
import pathlib
import signal
import sys
import zlib

import pytest

pytest_plugins = ["budgets"]
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

# Traced graphs are many small objects that stay: to look through them for garbage as often as Python does takes long.
gc.set_threshold(100_000, 10, 10)

# A shell's background jobs ignore it, and tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

GERMAN = [
    "Ein Mann läuft über die Straße.",
    "Die Kinder spielen im Garten.",
    "Zwei Hunde rennen über grüne Wiesen.",
    "Größe, Süße, Äpfel, Öl und Übermut.",
]


@pytest.fixture(scope="session")
def pairs():
    """A few dozen Korean and English sentences."""
    import korean_corpus

    return korean_corpus.all_pairs()[::2053]


@pytest.fixture(scope="session")
def sentences(pairs):
    return [sentence for pair in pairs for sentence in pair] + GERMAN


@pytest.fixture(scope="session")
def tokenizer(sentences):
    from keras_transformer.text import SentencePieceTokenizer

    return SentencePieceTokenizer.train(sentences, 260, character_coverage=1.0)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """A function that returns a folder, which `make(folder)` fills in one of the worker processes for all of them."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        folder, done = base / name, base / f"{name}.done"
        with open(base / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file ends it
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def tiny_run(made_once, pairs):
    """The folder of a run that learned enough for each sentence to get a translation of its own; do not write to it."""
    from keras_transformer.runs import Recipe, train

    recipe = Recipe(
        num_layers=1, d_model=48, num_heads=2, d_ff=64, dropout=0.0, normalize_first=True, vocab_size=260,
        character_coverage=1.0, epochs=3, batch_tokens=512, max_length=40, learning_rate=0.005,
        warmup_steps=30, label_smoothing=0.0,
    )  # fmt: skip
    return made_once("ko-en", lambda folder: train(recipe, pairs * 50, folder, say=lambda line: None))


@pytest.fixture(scope="session")
def translator(tiny_run):
    from keras_transformer.serving import Translator

    return Translator.load(tiny_run)


@pytest.fixture(scope="session")
def exported(translator, made_once):
    """The folder of version 1 of the translator's export; do not write to it."""

    def export(folder):
        assert (
            translator.export(folder, check=False) == folder / "1"
        )  # tests/serving/test_export.py checks one

    return made_once("ko_en", export) / "1"


@pytest.fixture(scope="session")
def loaded(exported):
    """The translator's export, loaded by TensorFlow."""
    import tensorflow as tf

    return tf.saved_model.load(str(exported))


@pytest.fixture
def float64():
    """Lets JAX compute in float64; it makes float32 of float64 unless it is told otherwise."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


# The number of quick cases of each test that is marked `sampled`. A word in `SAMPLE`, such as a commit's hash, chooses
# other cases.
CASES = int(os.environ.get("CASES", 3))
SAMPLE = zlib.crc32(os.environ.get("SAMPLE", "").encode())
# One of several parts of the test functions: "0/3", "1/3" and "2/3" together are all.
PART, PARTS = map(int, os.environ.get("PART", "0/1").split("/"))


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config, items):
    """Leaves each test that is marked `sampled` `CASES` quick cases, evenly spread; its other cases are slow."""
    part_of = {item: zlib.crc32(item.nodeid.partition("[")[0].encode()) % PARTS for item in items}
    config.hook.pytest_deselected(items=[item for item in items if part_of[item] != PART])
    items[:] = [item for item in items if part_of[item] == PART]
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test in cases.values():
        number = min(CASES, len(test))
        quick = {(index * len(test) // number + SAMPLE) % len(test) for index in range(number)}
        for index, item in enumerate(test):
            if index not in quick:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Takes the objects of the imported libraries out of every later collection: they are many, and they stay.

    Keras collects garbage for each layer that it quantizes.
    """
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def freed_graphs():
    """Frees the graphs of the module before: they are in cycles, and Python seldom looks for those here.

    Not when that module ends: its last test still holds its arguments then, and `freeze` would keep them for ever.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what is freed, in each of its threads' arenas
