"""Asks an exported translator: TensorFlow and tensorflow-text, nothing else.

    python examples/ask_export.py demo/export/1 "저는 학생입니다."
    python examples/ask_export.py demo/export/1 < sentences.txt

Prints a translation a line, with its score (its log probability) after a tab.
"""

import argparse
import os
import sys
from pathlib import Path

# Before TensorFlow loads: its notices are not the answer.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH_SIZE = 32
EXIT_INPUT = 2  # what the user gave cannot be used


def load(folder):
    """Returns the `serving_default` function of a SavedModel.

    Args:
        folder: The folder of one version, such as `export/1`.

    Raises:
        ValueError: If there is no SavedModel, or one that does not translate; the message says where to look.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder.")
    if not (folder / "saved_model.pb").is_file():
        versions = sorted(path.parent.name for path in folder.glob("*/saved_model.pb"))
        hint = (
            f" Its versions are {', '.join(versions)}: name one, {folder / versions[-1]}." if versions else ""
        )
        raise ValueError(f"{folder} holds no SavedModel.{hint}")

    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the tokenizer's ops

    try:
        model = tf.saved_model.load(str(folder))
    except (tf.errors.OpError, OSError) as error:
        raise ValueError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    function = model.signatures.get("serving_default")
    if function is None or not {"translation", "score"} <= set(function.structured_outputs):
        raise ValueError(f"{folder} holds a SavedModel, but no translator.")
    function.model = model  # a signature alone does not keep its variables alive
    return function


def ask(function, sentences):
    """Yields the translation and the score of each sentence, str or UTF-8 bytes."""
    import tensorflow as tf

    for start in range(0, len(sentences), BATCH_SIZE):
        answers = function(text=tf.constant(sentences[start : start + BATCH_SIZE], tf.string))
        for translation, score in zip(answers["translation"].numpy(), answers["score"].numpy(), strict=True):
            yield translation.decode("utf-8"), float(score)


def main(arguments=None):
    """Prints the translation and the score of each sentence; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "export", metavar="EXPORT", help="folder of one version of an export, such as export/1"
    )
    parser.add_argument(
        "sentences", metavar="SENTENCE", nargs="*", help="standard input, a line each, if none"
    )
    options = parser.parse_args(arguments)
    try:
        function = load(options.export)
    except ValueError as error:
        print(f"ask_export: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    sentences = [os.fsencode(sentence) for sentence in options.sentences]
    sentences = sentences or [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    for translation, score in ask(function, sentences):
        print(f"{translation}\t{score:.2f}")
    assert "keras_transformer" not in sys.modules, "the export must not need the library"
    return 0


if __name__ == "__main__":
    sys.exit(main())
