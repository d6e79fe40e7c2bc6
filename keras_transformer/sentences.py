"""Splits lines into sentences, and joins their translations with the blanks as they were. It needs no TensorFlow."""

import itertools
import re
from typing import NamedTuple

from keras_transformer.checks import check

# Number of characters that are split at once. sentencex takes time with the square of a Chinese line's length.
AT_ONCE = 8_000
# Blanks of several bytes, on which sentencex 1.0 panics where they stand between a capital letter and a full stop.
WIDE_BLANK = re.compile(r"(?<=[A-Z])[^\S\x00-\x7f](?=\.)")
# After one of these a writing system without blanks goes on.
FULL_WIDTH_ENDS = ("\u3002", "\uff01", "\uff1f", "\u2026", "\u300d", "\u300f", "\uff09")


class Part(NamedTuple):
    """A sentence of a line, with the blanks around it. The sentence is empty where a line has only blanks.

    before, sentence, after: str.
    """

    before: str
    sentence: str
    after: str


class SentenceSplitter:
    """Splits lines into sentences with the package sentencex.

    Args:
        language: The language of the lines, a code such as "en". sentencex splits a language that it does not know by
            general rules.

    Raises:
        ValueError: If `language` is not the code of a language.
        ImportError: If sentencex is not installed.
    """

    def __init__(self, language):
        is_code = isinstance(language, str) and re.fullmatch("[a-z]{2,3}(-[a-z]+)*", language)
        check(is_code, '`language` must be the code of a language, such as "en".', language=language)
        try:
            from sentencex import segment
        except ImportError as error:
            raise ImportError("Sentences are split with sentencex: pip install sentencex") from error
        self.language = language
        self._segment = segment

    def split(self, line):
        """Splits a line. A sentence of more than 8,000 characters is cut.

        Args:
            line: A str, or UTF-8 bytes.

        Returns:
            A list of `Part`. Their texts, joined, are the line.
        """
        line = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        parts, start = [], 0
        while start < len(line):
            segments = self._segments(line[start : start + AT_ONCE])
            # The last one may go on.
            ends_here = start + AT_ONCE >= len(line) or len(segments) == 1
            for segment in segments if ends_here else segments[:-1]:
                sentence = segment.strip()
                before, after = segment.split(sentence, 1) if sentence else (segment, "")
                parts.append(Part(before, sentence, after))
                start += len(segment)
        return parts

    def _segments(self, text):
        """Splits a text that is short enough for sentencex. What it fails at stays whole."""
        try:
            lengths = [*map(len, self._segment(self.language, WIDE_BLANK.sub(" ", text)))]
        except BaseException as error:
            # A panic of Rust is no `Exception`.
            if type(error).__name__ != "PanicException":
                raise
            lengths = []
        if sum(lengths) != len(text):
            return [text]
        ends = [*itertools.accumulate(lengths)]
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def sentences_of(lines):
    """Returns the sentences of split lines, a list of str.

    Args:
        lines: A list of lists of `Part`.
    """
    return [part.sentence for line in lines for part in line if part.sentence]


def joined(line, translations):
    """Joins the translations of a line's sentences.

    Args:
        line: A list of `Part`.
        translations: An iterator of str; it gives one for each sentence.

    Returns:
        A str.
    """
    text = ""
    for i, part in enumerate(line):
        text += part.before
        if part.sentence:
            translation = next(translations)
            # Chinese has no blank after a sentence, where other languages have one.
            missing = not part.after and i + 1 < len(line) and not translation.endswith(FULL_WIDTH_ENDS)
            text += translation + (" " if missing else part.after)
    return text
