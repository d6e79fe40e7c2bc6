"""Translates lines of several sentences: each sentence alone, with the blanks between them as they were."""

from keras_transformer.sentences import SentenceSplitter, joined, sentences_of


class SentenceTranslator:
    """Takes the place of a `Translator` where each line may hold several sentences, as `translate_lines` reads them.

    A translator of sentences merges two of them, or loses one. Here each is translated alone. The package sentencex
    finds the ends of sentences; it splits a language that it does not know by general rules.

    Args:
        translator: A `Translator`. Attributes that this class lacks are those of the translator.
        language: The language of the texts, a code such as "en".

    Raises:
        ValueError: If `language` is not the code of a language.
        ImportError: If sentencex is not installed.
    """

    def __init__(self, translator, language):
        self._splitter = SentenceSplitter(language)
        self.translator = translator
        self.language = language
        self._cut = self._unknown = self._unended = 0

    def __getattr__(self, name):
        return getattr(vars(self)["translator"], name)

    def translate_batch(self, texts):
        """Translates lines.

        Args:
            texts: List of str, or of UTF-8 bytes.

        Returns:
            A list of str, one for each line.
        """
        lines = [self._splitter.split(text) for text in texts]
        answers = iter(self.translator.answer_all(sentences_of(lines), "texts", max(1, len(texts)), False))
        written = []
        for line in lines:
            of_line = [next(answers) for _ in sentences_of([line])]
            self._cut += any(answer["truncated"] for answer in of_line)
            self._unknown += any(answer["unknown"] for answer in of_line)
            self._unended += not all(answer["ended"] for answer in of_line)
            translations = (answer["translation"].decode("utf-8", "replace") for answer in of_line)
            written.append(joined(line, translations))
        return written

    def count_cut(self, texts, lengths):
        """Returns in how many lines since the last call a sentence was cut."""
        cut, self._cut = self._cut, 0
        return cut

    def count_unknown(self):
        """Returns in how many lines since the last call a sentence held text that the vocabulary cannot write."""
        unknown, self._unknown = self._unknown, 0
        return unknown

    def count_unended(self):
        """Returns in how many lines since the last call a translation was cut at its largest length."""
        unended, self._unended = self._unended, 0
        return unended
