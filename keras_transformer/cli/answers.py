"""Lines of text for the answers of every servable, in Python or on a server."""

import json

import numpy as np


def sides_of(lines, pairs):
    """Returns the texts of lines: one list, or for pairs two, split at the first tab.

    Args:
        lines: List of bytes.
        pairs: Whether each line holds `text<TAB>second`.

    Raises:
        ValueError: If a line of a pair has no tab.
    """
    if not pairs:
        return [lines]
    for line in lines:
        if b"\t" not in line:
            raise ValueError(f"A line must be `text<TAB>second`. Received: {line[:100]!r}.")
    return [list(side) for side in zip(*(line.split(b"\t", 1) for line in lines), strict=True)]


def rows_of(outputs):
    """Yields a dict for each row of a dict of arrays `(batch, ...)`."""
    for values in zip(*outputs.values(), strict=True):
        yield dict(zip(outputs, values, strict=True))


def line_of(answer):
    r"""Makes one line of an answer.

    >>> line_of({"label": b"news", "probability": np.float32(0.9), "truncated": False})
    'news\t0.9'
    >>> line_of({"vector": np.array([0.6, -0.8], "float32"), "truncated": False})
    '[0.6, -0.8]'

    Args:
        answer: The outputs of one row by name: of a `Translator`, `TextGenerator`, `Classifier`, `ImageClassifier`,
            `Embedder` or `Similarity`.

    Returns:
        A str without line ends: the text; the label, a tab and its probability; all labels with their probabilities as
        JSON; the vector as JSON; or the score.

    Raises:
        OSError: If the answer has none of these outputs.
    """
    for written in ("translation", "continuation"):
        if written in answer:
            return " ".join(answer[written].decode("utf-8", "replace").splitlines())
    if "label" in answer:
        return f"{' '.join(_text(answer['label']).split())}\t{answer['probability']}"
    if "probabilities" in answer:
        probabilities = zip(map(_text, answer["labels"]), map(_number, answer["probabilities"]), strict=True)
        return json.dumps(dict(probabilities), ensure_ascii=False)
    if "vector" in answer:
        return json.dumps([_number(value) for value in answer["vector"]])
    if "score" in answer:
        return str(answer["score"])
    raise OSError(
        f"The model must answer with a text, a label, a vector or a score. Received: {sorted(answer)}."
    )


def _text(label):
    return label.decode("utf-8", "replace")


def _number(value):
    """Returns the float with the fewest digits that is this float32."""
    return float(str(np.float32(value)))
