"""What several folders of tests share: a small corpus, a tokenizer of it and a trained run."""

import gc
import pathlib
import signal
import sys

import pytest

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
def tiny_run(tmp_path_factory, pairs):
    """The folder of a run that learned enough for each sentence to get a translation of its own."""
    from keras_transformer.runs import Recipe, train

    recipe = Recipe(
        num_layers=1,
        d_model=48,
        num_heads=2,
        d_ff=64,
        dropout=0.0,
        normalize_first=True,
        vocab_size=260,
        character_coverage=1.0,
        epochs=3,
        batch_tokens=512,
        max_length=40,
        learning_rate=0.005,
        warmup_steps=30,
        label_smoothing=0.0,
    )
    folder = tmp_path_factory.mktemp("runs") / "ko-en"
    train(recipe, pairs * 50, folder, say=lambda line: None)
    return folder


@pytest.fixture(scope="session")
def translator(tiny_run):
    from keras_transformer.serving import Translator

    return Translator.load(tiny_run)


@pytest.fixture(scope="session")
def exported(translator, tmp_path_factory):
    """The folder of version 1 of the translator's export."""
    folder = tmp_path_factory.mktemp("exported") / "ko_en"
    path = translator.export(folder)
    assert path == folder / "1"
    return path


@pytest.fixture(scope="session")
def loaded(exported):
    """The translator's export, loaded by TensorFlow."""
    import tensorflow as tf

    return tf.saved_model.load(str(exported))


@pytest.fixture(scope="module", autouse=True)
def freed_graphs():
    """Frees the graphs of a module's tests: they are in cycles, and Python seldom looks for those here."""
    yield
    gc.collect()
