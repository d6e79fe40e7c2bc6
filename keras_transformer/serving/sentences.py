"""Translates lines of several sentences: each sentence alone, with the blanks between them as they were."""

import re

from keras_transformer.checks import check

# After one of these a writing system without blanks goes on.
FULL_WIDTH_ENDS = ("\u3002", "\uff01", "\uff1f", "\u2026", "\u300d", "\u300f", "\uff09")


class SentenceTranslator:
    """Takes the place of a `Translator` where each line may hold several sentences, as `translate_lines` reads them.

    A translator of sentences merges two of them, or loses one. Here each is translated alone. The package sentencex
    finds the ends of sentences; it splits a language that it does not know by general rules.

    Args:
        translator: A `Translator`. Attributes that this class lacks are those of the translator.
        language: The language of the texts, a code such as "en".

    Raises:
        ValueError: If `language` is no code of a language.
        ImportError: If sentencex is not installed.
    """

    def __init__(self, translator, language):
        is_code = isinstance(language, str) and re.fullmatch("[a-z]{2,3}(-[a-z]+)*", language)
        check(is_code, '`language` must be the code of a language, such as "en".', language=language)
        try:
            from sentencex import segment
        except ImportError as error:
            raise ImportError("Sentences are split with sentencex: pip install sentencex") from error
        self.translator = translator
        self.language = language
        self._segment = segment
        self._cut = 0

    def __getattr__(self, name):
        return getattr(vars(self)["translator"], name)

    def translate_batch(self, texts):
        """Translates lines.

        Args:
            texts: List of str, or of UTF-8 bytes.

        Returns:
            A list of str, one for each line.
        """
        lines = [self._parts(_as_str(text)) for text in texts]
        sentences = [sentence for line in lines for _, sentence, _ in line if sentence]
        answers, _ = self.translator.answer_all(sentences, "texts", max(1, len(texts)), False)
        found = iter(answers)
        return [self._written(line, found) for line in lines]

    def count_cut(self, texts, lengths):
        """Returns in how many lines since the last call a sentence was cut."""
        cut, self._cut = self._cut, 0
        return cut

    def _parts(self, line):
        """Splits a line: returns a list of `(blanks before, sentence, blanks after)`, tuples of str."""
        parts = []
        for segment in self._segment(self.language, line):
            sentence = segment.strip()
            before, after = segment.split(sentence, 1) if sentence else (segment, "")
            parts.append((before, sentence, after))
        return parts

    def _written(self, parts, answers):
        """Joins the translations of a line, and counts whether a sentence of it was cut."""
        text, cut = "", False
        for i, (before, sentence, after) in enumerate(parts):
            text += before
            if not sentence:
                continue
            answer = next(answers)
            cut |= bool(answer["truncated"])
            translation = answer["translation"].decode("utf-8", "replace")
            # Chinese has no blank after a sentence, where other languages have one.
            missing = not after and i + 1 < len(parts) and not translation.endswith(FULL_WIDTH_ENDS)
            text += translation + (" " if missing else after)
        self._cut += cut
        return text


def _as_str(text):
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
