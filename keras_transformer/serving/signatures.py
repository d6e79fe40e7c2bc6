"""What an export answers: the functions behind its signatures, each of a batch of any size."""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.backend import compiled
from keras_transformer.models.generation import lengths_of
from keras_transformer.models.limits import default_limit
from keras_transformer.text.base import valid_utf8

# No piece of a SentencePiece model is longer unless its training was told so. Runs of blanks and of unknown characters
# can be, as they become one token: what a text holds after more of them is lost, and its row says that it was cut.
CHARACTERS_A_TOKEN = 16
# Rows that are scored at once: each holds a logit for each token of its target and each of the vocabulary.
SCORED_ROWS = 8

SIGNATURES = {
    "serving_default": "Translates texts.",
    "n_best": "The n best translations of each text, best first.",
    "alignment": "Translates texts and says how much each piece of a translation attends to each piece of its text.",
    "score": "How likely the model finds given translations.",
    "tokens": "Translates token ids, for callers with a tokenizer of their own.",
}


def measured(texts, tokenizer, limit):
    """The lengths of texts (bytes) in tokens, NumPy int `(batch,)`, and how many of them an export cuts at a limit."""
    lengths = tokenizer.tokenize(texts).row_lengths().numpy()
    characters = limit * CHARACTERS_A_TOKEN
    long = [len(text) > characters and len(text.decode(errors="replace")) > characters for text in texts]
    return lengths, int(((lengths >= limit) | long).sum())


class Signatures:
    """The functions of a translator's graph.

    Rows are taken in order of their length, at most the largest of `batch_sizes` at once: neither time nor memory
    of a step grows with the request. What a row holds changes no other row.

    Args:
        translator: A `Translator`.
        batch_sizes: Increasing ints. The last is how many rows are searched at once. With `source_lengths` a search
            has one of these sizes, filled up with rows that end at once.
        source_lengths: Increasing ints, to which sources are padded for a search compiled with XLA; None for a
            search that is not.
        weights: Tensors to compute with instead of the model's variables: a function to a list of them, in the order of
            `model.weights`; None for the variables.
    """

    def __init__(self, translator, batch_sizes, source_lengths=None, weights=None):
        self._translator = translator
        self._model = translator.model
        self._batch_sizes = batch_sizes
        self._source_lengths = source_lengths
        self._weights = weights
        ids = tf.TensorSpec((None, None), tf.int32)
        # Functions of their own for what several signatures share: a graph holds each once.
        self._source = _function(self._source_ids, text=tf.TensorSpec((None,), tf.string))
        self._detokenize = _function(translator.target_tokenizer.detokenize, ids=ids)
        pieces = {tokenizer: self._pieces_function(tokenizer) for tokenizer in translator.tokenizers}
        self._source_pieces, self._target_pieces = (pieces[tokenizer] for tokenizer in translator.tokenizers)
        self._search = _function(self._search_chunks, source=ids)
        self._score = _function(self._score_chunks, source=ids, target=ids)

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        text, target = (tf.TensorSpec((None,), tf.string, name=name) for name in ("text", "target"))
        source = tf.TensorSpec((None, None), tf.int32, name="source")
        return {
            "serving_default": _function(self.translate, text=text),
            "n_best": _function(self.n_best, text=text),
            "alignment": _function(self.alignment, text=text),
            "score": _function(self.score, text=text, target=target),
            "tokens": _function(self.tokens, source=source),
        }

    def translate(self, text):
        """Texts `(batch,)` to the best translation of each, its score and whether the text was cut, all `(batch,)`."""
        source, truncated = self._source(text)
        tokens, _, scores = self._search(source)
        translation = self._detokenize(tokens[:, 0])
        return {"translation": translation, "score": scores[:, 0], "truncated": truncated}

    def n_best(self, text):
        """Texts `(batch,)` to translations and scores `(batch, n)`, best first, and which texts were cut."""
        source, truncated = self._source(text)
        tokens, _, scores = self._search(source)
        n, length = self._translator.strategy.n_best, tf.shape(tokens)[2]
        translations = self._detokenize(tf.reshape(tokens, (-1, length)))
        return {"translations": tf.reshape(translations, (-1, n)), "scores": scores, "truncated": truncated}

    def alignment(self, text):
        """Texts `(batch,)` to translations, the pieces of both `(batch, length)`, and what attends to what, float32
        `(batch, target_len, source_len)`."""
        source, truncated = self._source(text)
        tokens, _, _ = self._search(source)
        target = tokens[:, 0]
        _, _, attention = self._score(source, target)
        return {
            "translation": self._detokenize(target),
            "source_pieces": self._source_pieces(source),
            "target_pieces": self._target_pieces(target),
            "attention": attention,
            "truncated": truncated,
        }

    def score(self, text, target):
        """Texts and targets `(batch,)` to log probabilities `(batch,)`, and of each piece `(batch, target_len)`.

        An empty target is the end at once, and has that one's probability; as the target of an empty text it scores 0,
        as that text's translation does.
        """
        source, truncated = self._source(text)
        limit = default_limit(self._translator.max_source_length, 0, (), self._model.longest)
        target, cut = self._ids(
            target,
            self._translator.target_tokenizer,
            self._translator.max_length or limit,
            ends=tf.reduce_any(source != self._model.pad_id, axis=1),
        )
        score, token_scores, _ = self._score(source, target)
        return {
            "score": score,
            "token_scores": token_scores,
            "target_pieces": self._target_pieces(target),
            "truncated": truncated | cut,
        }

    def tokens(self, source):
        """Ids `(batch, source_len)` to ids `(batch, n, target_len)`, their lengths and scores `(batch, n)`."""
        limit, pad_id = self._translator.max_source_length, self._model.pad_id
        known = (source >= 0) & (source < self._model.source_vocab_size)
        source = tf.where(known, source, self._translator.source_tokenizer.unk_id)
        truncated = tf.reduce_any(source[:, limit:] != pad_id, axis=1)
        source = tf.pad(source, [[0, 0], [0, 1]], constant_values=pad_id)[:, :limit]
        tokens, lengths, scores = self._search(source)
        return {"tokens": tokens, "lengths": lengths, "scores": scores, "truncated": truncated}

    def _source_ids(self, text):
        return self._ids(text, self._translator.source_tokenizer, self._translator.max_source_length)

    def _ids(self, text, tokenizer, limit, ends=False):
        """Texts as ids, int32 `(batch, length)`, each cut to the limit and ended by eos; and which were cut.

        A text without a token gets no eos either, unless `ends` says so: a row of padding, whose answer is empty.
        """
        text = valid_utf8(text)
        characters = limit * CHARACTERS_A_TOKEN
        truncated = tf.strings.length(text, unit="UTF8_CHAR") > characters
        ids = tokenizer.tokenize(tf.strings.substr(text, 0, characters, unit="UTF8_CHAR"))
        lengths = ids.row_lengths()
        truncated |= lengths >= limit
        ends = tf.cast((lengths > 0) | ends, tf.int64)
        ends = tf.RaggedTensor.from_row_lengths(tf.fill((tf.reduce_sum(ends),), self._model.eos_id), ends)
        ids = tf.concat([ids[:, : limit - 1], ends], axis=1).to_tensor(self._model.pad_id)
        empty = tf.cast(tf.shape(ids)[1] == 0, tf.int32)  # at least one column
        return tf.pad(ids, [[0, 0], [0, empty]], constant_values=self._model.pad_id), truncated

    def _pieces_function(self, tokenizer):
        """A function from ids to their pieces, padding to empty strings."""

        def pieces(ids):
            table = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
            known = (ids >= 0) & (ids < tokenizer.vocab_size)
            return tf.where(
                ids == self._model.pad_id, "", tf.gather(table, tf.where(known, ids, tokenizer.unk_id))
            )

        return _function(pieces, ids=tf.TensorSpec((None, None), tf.int32))

    def _search_chunks(self, source):
        """The hypotheses of sources `(batch, source_len)`: tokens `(batch, n, target_len)`, lengths, scores."""
        translator = self._translator
        strategy, constraints = translator.strategy, translator.constraints
        seed = getattr(strategy, "seed", 0)
        if seed is None:  # other samples with each call
            seed = tf.random.uniform((), maxval=tf.int32.max, dtype=tf.int32)
        seed = tf.convert_to_tensor(seed, tf.int32)

        def search(source, seed):
            return self._model.search(
                source, strategy, translator.max_length, constraints=constraints, seed=seed
            )

        def shaped(source):
            """The search of a batch of one of the shapes that were asked for."""
            rows, length = tf.unstack(tf.shape(source))
            to = (self._next(self._batch_sizes, rows), self._next(self._source_lengths, length))
            padded = tf.pad(
                source, [[0, to[0] - rows], [0, to[1] - length]], constant_values=self._model.pad_id
            )
            return tf.nest.map_structure(lambda part: part[:rows], search_compiled(padded, seed))

        search_compiled = compiled(search, self._model, jit_compile=True)
        width = tf.shape(source)[1]
        if self._source_lengths:
            width = self._next(self._source_lengths, width)
        longest = translator.max_length or default_limit(width, 0, constraints, self._model.longest)
        n = strategy.n_best
        with self._computing():
            tokens, lengths, scores = self._in_chunks(
                shaped if self._source_lengths else lambda rows: search(rows, seed),
                [source],
                [((n, longest), self._model.pad_id), ((n,), 0), ((n,), 0.0)],
                self._batch_sizes[-1],
            )
        return tokens[:, :, : tf.maximum(1, tf.reduce_max(lengths))], lengths, scores

    def _score_chunks(self, source, target):
        """The scores of targets `(batch, target_len)`: `(batch,)`, for each token, and how each attends."""
        source_len, target_len = tf.shape(source)[1], tf.shape(target)[1]

        def score(source, target):
            return [part[:, 0] for part in self._model.score_all(source, target[:, None])]

        with self._computing():
            return self._in_chunks(
                score,
                [source, target],
                [((), 0.0), ((target_len,), 0.0), ((target_len, source_len), 0.0)],
                min(SCORED_ROWS, self._batch_sizes[-1]),
            )

    def _in_chunks(self, function, inputs, outputs, size):
        """Applies a function to a few rows at a time, those of like length together, without their common padding.

        Args:
            function: Of int32 tensors `(rows, length)` to a list of tensors `(rows, ...)`.
            inputs: Tensors `(batch, length)` for it, padded on the right. The first says which rows go together.
            outputs: The shape of each result in the whole batch, without the batch, and what fills it up.
            size: How many rows at a time.

        Returns:
            A list of tensors `(batch, ...)`.
        """
        rows = tf.shape(inputs[0])[0]
        lengths = [lengths_of(each, self._model.pad_id) for each in inputs]
        order = tf.argsort(lengths[0], stable=True)
        count = tf.maximum(1, -(-rows // size))

        def turn(i, arrays):
            members = order[i * size : (i + 1) * size]
            chunk = [
                tf.gather(each, members)[:, : tf.maximum(1, tf.reduce_max(tf.gather(length, members)))]
                for each, length in zip(inputs, lengths, strict=True)
            ]
            results = [
                _filled(result, shape, fill)
                for result, (shape, fill) in zip(function(*chunk), outputs, strict=True)
            ]
            return i + 1, [array.write(i, result) for array, result in zip(arrays, results, strict=True)]

        arrays = [
            tf.TensorArray(
                tf.convert_to_tensor(fill).dtype,
                count,
                infer_shape=False,
                element_shape=[None] * (1 + len(shape)),
            )
            for shape, fill in outputs
        ]
        _, arrays = tf.while_loop(lambda i, _: i < count, turn, (0, arrays), parallel_iterations=1)
        back = tf.math.invert_permutation(order)
        results = [tf.gather(array.concat(), back) for array in arrays]
        return [
            tf.ensure_shape(result, (None, *(to if isinstance(to, int) else None for to in shape)))
            for result, (shape, _) in zip(results, outputs, strict=True)
        ]

    @staticmethod
    def _next(sizes, size):
        """The least of some sizes that has room for one."""
        return tf.reduce_min(tf.where(tf.constant(sizes) >= size, sizes, sizes[-1]))

    def _computing(self):
        if self._weights is None:
            return contextlib.nullcontext()
        return keras.StatelessScope(
            state_mapping=list(zip(self._model.weights, self._weights(), strict=True))
        )


def _function(function, **signature):
    """A `tf.function` of arguments of these names and kinds."""
    return tf.function(function, input_signature=list(signature.values()), autograph=False)


def _filled(x, shape, fill):
    """A tensor `(rows, ...)` padded to `(rows, *shape)`."""
    sizes = tf.shape(x)[1:]
    padding = [[0, 0], *([0, to - sizes[axis]] for axis, to in enumerate(shape))]
    return tf.pad(x, padding, constant_values=tf.cast(fill, x.dtype)) if shape else x
