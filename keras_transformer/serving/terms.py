"""A translator whose translations hold what they must: terms of a glossary, copied text, words without an id."""

import dataclasses
import hashlib
import itertools
import json

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check, warn
from keras_transformer.decoding import Beam, DiverseBeam, PhraseBeam
from keras_transformer.serving.glossary import Glossary, UnknownWords, goes_on
from keras_transformer.serving.signatures import Output, function_of
from keras_transformer.serving.translator import Translator, TranslatorSignatures

WIDTHS = (16, 32, 64)
# Places of the beam in addition to one for each token of the terms.
FREE = 4
# Number of hypotheses that are searched at once.
HYPOTHESES = 512
# Number of terms whose ids are kept.
KEPT_TERMS = 10_000
SIGNATURE = "terms"
EXAMPLES = 5


class TermSignatures(TranslatorSignatures):
    """The function of a `TermTranslator` for texts with terms. Exports do not have it."""

    def functions(self):
        """Returns a dict from the name of the function to its `tf.function`."""
        text = tf.TensorSpec((None,), tf.string, name="text")
        phrases = tf.TensorSpec((None, None, None), tf.int32, name="phrases")
        return {SIGNATURE: function_of(self.translate_with_phrases, text=text, phrases=phrases)}

    def translate_with_phrases(self, text, phrases):
        """Translates texts.

        Args:
            text: string `(batch,)`.
            phrases: The ids that each translation must hold, int32 `(batch, phrases, length)`, padded on the right.

        Returns:
            A dict: the outputs of the signatures `serving_default` and `alignment`.
        """
        servable = self._servable
        source, truncated = self._tokenize(text)

        def search(source, phrases):
            return self._model.search(
                source,
                dataclasses.replace(servable.strategy, phrases=phrases),
                servable.max_length,
                constraints=servable.constraints,
                prefix=self._starts(source) if servable.target_start else None,
            )

        longest = servable.limits.of(self._padded_length(source), len(servable.target_start))
        with self._computing():
            tokens, lengths, scores = self._in_chunks(
                search,
                [source, phrases],
                [Output((1, longest), self._model.pad_id), Output((1,), 0), Output((1,), 0.0)],
                self._batch_sizes[-1],
            )
        target = tokens[:, 0, : tf.maximum(1, tf.reduce_max(lengths))]
        _, _, attention = self._score(source, target)
        return {
            "translation": self._translations(target),
            "score": scores[:, 0],
            "target_pieces": self._target_pieces(target),
            "attention": attention,
            "ended": self._ended(source, tokens, lengths)[:, 0],
            **self._notes(source, truncated),
        }


class TermTranslator(Translator):
    """A `Translator` whose translations hold the terms of a glossary, and words that the vocabulary lacks.

    A text with terms is searched with a `PhraseBeam` that is wide enough for them, whatever the strategy of the
    translator; any other text as the translator searches it. A search holds each term as a word of its own, unless all
    terms of a text together are longer than its translation may be, a constraint forbids one of their tokens, or a
    letter of several tokens follows. A warning has the number of texts without one of their terms. The grammar of a
    translation is the model's: a term is not inflected.

    It works in Python, and not in an export.

    Args:
        translator: A `Translator`.
        glossary: A `Glossary`, or a dict from the source's term to its translation. None for no terms.
        replace_unknown: Whether each unknown token of a translation is replaced by the source word that it attends to
            most. Any attention can be wrong, and the word is copied as it is.

    Raises:
        ValueError: If the vocabulary cannot write a translation of the glossary.

    >>> from keras_transformer.models import Transformer
    >>> from keras_transformer.text import ByteTokenizer
    >>> model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    >>> translator = TermTranslator(Translator(model, ByteTokenizer(), max_length=40), {"dog": "Hund"})
    >>> " Hund" in translator.translate(["A dog runs."])[0]
    True
    """

    def __init__(self, translator, glossary=None, replace_unknown=False):
        vars(self).update(vars(translator.changed()))
        self.translator = translator
        self.glossary = glossary if isinstance(glossary, Glossary) else Glossary(glossary or {})
        self.replace_unknown = replace_unknown
        self._unknown_words = UnknownWords(self) if replace_unknown else None
        self._by_width, self._phrases = {}, {}
        self._inner_ids = self._closed_ids = None
        self._missing, self._missing_texts, self._found = 0, [], set()
        unwritable = [term for term in dict.fromkeys(self.glossary.terms.values()) if not self._ids_of(term)]
        rule = (
            "`glossary` must hold translations that the vocabulary of the translator can write as they are."
        )
        check(not unwritable, rule, count=len(unwritable), translations=unwritable[:EXAMPLES])

    def answer(self, *inputs, signature="serving_default", jit_compile=None):
        """Answers one request, as `Translator.answer`. The first signature takes account of the terms.

        Args:
            *inputs: The inputs of the signature, lists of bytes or arrays `(batch, ...)`.
            signature: Name of the signature.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator. Texts with
                terms are translated in the portable graph.

        Returns:
            A dict from an output's name to its NumPy array `(batch, ...)`. That of the first signature has `missing`,
            too: int `(batch,)`, the number of terms that a translation lacks.
        """
        if signature != "serving_default":
            return super().answer(*inputs, signature=signature, jit_compile=jit_compile)
        texts = list(inputs[0])
        terms = [self.glossary.found_in(text.decode("utf-8", "replace")) for text in texts]
        self._found.update(itertools.chain.from_iterable(terms))
        phrases = [[ids for ids in map(self._ids_of, row) if ids] for row in terms]
        plain = [i for i, row in enumerate(phrases) if not row]
        outputs = {}
        if plain or not texts:
            self._fill(outputs, plain, self._plain([texts[i] for i in plain], jit_compile), len(texts))
        for width, rows in self._by_needed_width(phrases).items():
            size = max(1, HYPOTHESES // width)
            for start in range(0, len(rows), size):
                some = rows[start : start + size]
                answers = self._with_phrases([texts[i] for i in some], [phrases[i] for i in some], width)
                self._fill(outputs, some, answers, len(texts))
        missing = map(self._lacking, texts, terms, outputs["translation"])
        return {**outputs, "missing": np.array([*missing], int)}

    def warn_if_cut(self, cut, count, name):
        """Warns that some texts were cut, and that some translations lack a term.

        Args:
            cut: Number of texts that were cut, an int.
            count: Number of texts, an int.
            name: What the texts are, such as "sentences".
        """
        super().warn_if_cut(cut, count, name)
        if self._missing:
            examples = ", ".join(map(repr, self._missing_texts))
            warn(f"{self._missing:,} translations lack a term of their text, for example that of {examples}.")
        self._missing, self._missing_texts = 0, []

    @property
    def terms_in_texts(self):
        """A sentence with the number of terms in the texts so far. In a glossary the wrong way round it is 0."""
        translations = set(self.glossary.terms.values())
        there, copied = len(self._found & translations), len(self._found - translations)
        counts = [f"{there:,} of {len(translations):,} translations of the glossary"] if translations else []
        counts += [f"{copied:,} different matches of `copy`"] if self.glossary.copy else []
        return f"the texts ask for {' and '.join(counts) or 'no terms'}"

    @property
    def terms(self):
        """What `translate_file` compares before it goes on: a dict of JSON."""
        content = json.dumps([self.glossary.terms, self.glossary.copy]).encode()
        return {"glossary": hashlib.sha256(content).hexdigest(), "replace_unknown": self.replace_unknown}

    def changed(self, **changes):
        return TermTranslator(self.translator.changed(**changes), self.glossary, self.replace_unknown)

    def write_into(self, folder, **notes):
        check(
            False, "The terms of a `TermTranslator` are not saved: save its translator.", folder=str(folder)
        )

    def export(self, folder, version=1, xla=False, **options):
        """Raises `ValueError`: an export cannot search for terms."""
        check(False, "A `TermTranslator` is not exported: export its translator.", folder=str(folder))

    def _plain(self, texts, jit_compile):
        """Answers texts without terms."""
        outputs = super().answer(texts, jit_compile=jit_compile)
        rows = (
            np.flatnonzero(self._unknown_words.in_texts(outputs["translation"]))
            if self.replace_unknown
            else []
        )
        if len(rows):
            some = [texts[i] for i in rows]
            aligned = super().answer(some, signature="alignment", jit_compile=jit_compile)
            # A strategy that draws may have drawn another translation.
            same = aligned["translation"] == outputs["translation"][rows]
            aligned = {name: value[same] for name, value in aligned.items()}
            some = [text for text, is_same in zip(some, same, strict=True) if is_same]
            outputs["translation"][rows[same]] = self._without_unknown(some, aligned)
        return outputs

    def _with_phrases(self, texts, phrases, width):
        """Answers texts whose translations must hold phrases, lists of lists of int."""
        shape = len(texts), max(map(len, phrases)), max(len(ids) for row in phrases for ids in row)
        array = np.full(shape, self.model.pad_id, "int32")
        for row, ids_of_row in enumerate(phrases):
            for i, ids in enumerate(ids_of_row):
                array[row, i, : len(ids)] = ids
        servable = self._servable(width, phrases[0][0][-1])
        outputs = servable.answer(texts, array, signature=SIGNATURE, jit_compile=False)
        if self.replace_unknown:
            outputs["translation"][:] = self._without_unknown(texts, outputs)
        return outputs

    def _without_unknown(self, texts, outputs):
        """Returns the translations of an answer with source words for unknown tokens, a list of bytes."""
        rows = zip(texts, outputs["translation"], outputs["target_pieces"], outputs["attention"], strict=True)
        return [self._unknown_words.replaced(*row) for row in rows]

    def _fill(self, outputs, rows, answers, count):
        """Writes an answer to some of `count` texts into the outputs for all of them, without the alignment."""
        for name, values in answers.items():
            if values.ndim == 1:
                outputs.setdefault(name, np.zeros(count, values.dtype))[rows] = values

    def _by_needed_width(self, phrases):
        """Returns a dict from the width of a beam to the numbers of the texts that need it."""
        rows = {}
        for i, row in enumerate(phrases):
            if row:
                needed = max(sum(map(len, row)) + FREE, getattr(self.strategy, "width", 1))
                width = next((width for width in WIDTHS if width >= needed), WIDTHS[-1])
                rows.setdefault(width, []).append(i)
        return rows

    def _servable(self, width, last):
        """Returns the translator that searches with a `PhraseBeam`, the same one for each width."""
        if width not in self._by_width:
            options = {}
            if isinstance(self.strategy, (Beam, DiverseBeam)):
                options = {name: getattr(self.strategy, name) for name in ("length_penalty", "normalization")}
            inner_ids, closed_ids = self._ids_inside_words(last), self._ids_that_close_words()
            strategy = PhraseBeam(width, **options, inner_ids=inner_ids, closed_ids=closed_ids)
            self._by_width[width] = self.translator.changed(strategy=strategy)
            self._by_width[width].signatures_class = TermSignatures
        return self._by_width[width]

    def _ids_inside_words(self, last):
        """Returns the ids that make a term a part of a longer word, a list of int.

        Args:
            last: The last id of a term, an int.
        """
        if self._inner_ids is None:
            ids = range(self.target_tokenizer.vocab_size)
            (term,) = self._texts_of([[last]])
            texts = self._texts_of([[last, i] for i in ids])
            self._inner_ids = [
                i for i in ids if texts[i].startswith(term) and goes_on(texts[i].removeprefix(term))
            ]
        return self._inner_ids

    def _ids_that_close_words(self):
        """Returns the ids whose text ends with no letter, such as that of `€`, a list of int."""
        if self._closed_ids is None:
            texts = self._texts_of([[i] for i in range(self.target_tokenizer.vocab_size)])
            # A part of a letter of several bytes is the replacement character.
            self._closed_ids = [
                i for i, text in enumerate(texts) if text and not goes_on(text[-1]) and text[-1] != "\ufffd"
            ]
        return self._closed_ids

    def _texts_of(self, rows):
        """Returns the texts of rows of ids, a list of str."""
        rows = np.array(rows, "int32")
        return [text.decode("utf-8", "replace") for text in self.target_tokenizer.detokenize(rows).numpy()]

    def _ids_of(self, term):
        """Returns the ids of a term as it stands after another word, a list; an empty one if they cannot write it."""
        if term not in self._phrases:
            if len(self._phrases) >= KEPT_TERMS:
                # Copied text can be another in each line.
                self._phrases.clear()
            self._phrases[term] = []
            for text in (term, f" {term}"):
                tokenizer = self.target_tokenizer
                before, ids = (row.numpy().tolist() for row in tokenizer.tokenize([term, text]))
                unknown = any(tokenizer.is_unknown(before))
                written = tokenizer.detokenize([[*before, *ids], ids]).numpy().tolist()
                if (
                    not unknown
                    and written[0].decode() == f"{term} {term}"
                    and written[1].decode().strip() == term
                ):
                    self._phrases[term] = ids
                    break
        return self._phrases[term]

    def _lacking(self, text, terms, translation):
        """Returns the number of terms that a translation lacks, and keeps the text as an example."""
        translation = translation.decode("utf-8", "replace")
        lacking = len(self.glossary.lacking(terms, translation))
        if lacking:
            self._missing += 1
            if len(self._missing_texts) < EXAMPLES:
                self._missing_texts.append(text.decode("utf-8", "replace")[:60])
        return lacking
