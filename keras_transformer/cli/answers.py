"""Lines of text for the answers of every servable, in Python or on a server."""

import json
import re
import sys

import numpy as np

from keras_transformer.checks import printable

# Characters that a terminal obeys: controls, and those that turn the direction of a line.
OBEYED = "[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
NO_TAB = "A line must be `text<TAB>second` for a model that reads pairs. Received: a line without a tab."


class LineAnswers:
    """Lines in, lines out, for any servable, as `serving.translate_lines` reads them.

    Args:
        servable: A servable that reads texts or pairs of texts.
        signature: Name of the signature that answers.
    """

    def __init__(self, servable, signature="serving_default"):
        self.servable = servable
        self.signature = signature
        self.source_tokenizer = servable.tokenizers[0]
        self.pairs = len(getattr(servable, "inputs", ("text",))) > 1
        self.cut = 0

    def translate_batch(self, texts):
        """Returns a line for each text, list of str, or in its place the `ValueError` of a pair without a tab."""
        fits = [not self.pairs or b"\t" in text for text in texts]
        usable = [text for text, good in zip(texts, fits, strict=True) if good]
        rows = iter(())
        if usable:
            outputs = self.servable.answer(*sides_of(usable, self.pairs), signature=self.signature)
            self.cut += int(sum(outputs["truncated"]))
            rows = rows_of(outputs)
        return [line_of(next(rows)) if good else ValueError(NO_TAB) for good in fits]

    def token_lengths(self, texts):
        """Returns the number of tokens of each line, int NumPy `(batch,)`."""
        return self.servable.token_lengths(*sides_of([text + b"\t" for text in texts], self.pairs))

    def count_cut(self, texts, lengths):
        """Returns how many lines were cut since the last call."""
        cut, self.cut = self.cut, 0
        return cut

    def warn_if_cut(self, cut, count, name):
        """Warns that some lines were cut."""
        self.servable.warn_if_cut(cut, count, "lines")


def standard_input():
    """Returns the file of bytes that is standard input.

    Raises:
        ValueError: If it was closed before the command started.
    """
    if sys.stdin is None:
        raise ValueError("Standard input must be open. Received: a closed one.")
    return sys.stdin.buffer


def checked_path(path, number):
    """Returns a line of standard input that must be a path, a str, or raises `ValueError` if it is blank.

    >>> checked_path("", 3)
    Traceback (most recent call last):
    ValueError: Line 3 of standard input must be the path of a file. Received: a blank line.
    """
    if not path.strip():
        raise ValueError(
            f"Line {number} of standard input must be the path of a file. Received: a blank line."
        )
    return path


def write_answers(text):
    """Writes lines to standard output at once. On a terminal, control characters are written as escapes."""
    if sys.stdout.isatty():
        text = re.sub(OBEYED, lambda match: printable(match[0]), text)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


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
    if not all(b"\t" in line for line in lines):
        raise ValueError(NO_TAB)
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
        answer: The outputs of one row by name: of a `Translator`, `TextGenerator`, `Classifier`, `Tagger`,
            `ImageClassifier`, `Embedder` or `Similarity`.

    Returns:
        A str without line ends: the text; the label, a tab and its probability; all labels with their probabilities as
        JSON; lists of token, label and probability as JSON; entities as JSON; the vector as JSON; or the score.

    Raises:
        OSError: If the answer has none of these outputs.
    """
    for written in ("translation", "continuation"):
        if written in answer:
            return " ".join(answer[written].decode("utf-8", "replace").splitlines())
    if "label" in answer:
        return f"{' '.join(_text(answer['label']).split())}\t{answer['probability']!s}"
    if "words" in answer:
        names = {
            "words": "word",
            "labels": "label",
            "probabilities": "probability",
            "starts": "start",
            "ends": "end",
        }
        columns = [answer[name].tolist() for name in names]
        columns[2] = map(_number, answer["probabilities"])
        rows = [dict(zip(names.values(), row, strict=True)) for row in zip(*columns, strict=True) if row[0]]
        return json.dumps(rows, ensure_ascii=False, default=_text)
    if "tokens" in answer and "labels" in answer:
        rows = zip(answer["tokens"], answer["labels"], answer["probabilities"], strict=True)
        tags = [[_text(token), _text(label), _number(value)] for token, label, value in rows if token]
        return json.dumps(tags, ensure_ascii=False)
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
