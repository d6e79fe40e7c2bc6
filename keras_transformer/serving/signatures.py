"""What an export answers: the functions behind its signatures, each of a batch of any size."""

import tensorflow as tf

from keras_transformer.models.limits import default_limit
from keras_transformer.serving.rows import CHARACTERS_A_TOKEN, Rows, function_of, readable

# Rows that are scored at once: each holds a logit for each token of its target and each of the vocabulary.
SCORED_ROWS = 8


SIGNATURES = {
    "serving_default": "Translates texts.",
    "n_best": "The n best translations of each text, best first.",
    "alignment": "Translates texts and says how much each piece of a translation attends to each piece of its "
    "text.",
    "score": "How likely the model finds given translations.",
    "tokens": "Translates token ids, for callers with a tokenizer of their own.",
}


def measured(texts, tokenizer, limit):
    """The lengths of texts (bytes) in tokens, NumPy int `(batch,)`, and how many of them an export cuts at a limit."""
    lengths = tokenizer.tokenize(texts).row_lengths().numpy()
    characters = limit * CHARACTERS_A_TOKEN
    long = [len(text) > characters and len(text.decode(errors="replace")) > characters for text in texts]
    return lengths, int(((lengths >= limit) | long).sum())


class Searches(Rows):
    """What the signatures of all models share that write texts.

    Args: as `Rows`, of a `Translator` or a `TextGenerator`.
    """

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        super().__init__(servable, batch_sizes, source_lengths, weights)
        ids = tf.TensorSpec((None, None), tf.int32)
        # Functions of their own for what several signatures share: a graph holds each once.
        self._source = function_of(self._source_ids, text=tf.TensorSpec((None,), tf.string))
        self._detokenize = function_of(self._texts, ids=ids)
        tokenizers = servable.source_tokenizer, servable.target_tokenizer
        pieces = {tokenizer: self._pieces_function(tokenizer) for tokenizer in tokenizers}
        self._source_pieces, self._target_pieces = (pieces[tokenizer] for tokenizer in tokenizers)
        self._search = function_of(self._search_chunks, source=ids)
        self._score = function_of(self._score_chunks, source=ids, target=ids)

    def score(self, text, target):
        """Texts and targets `(batch,)` to log probabilities `(batch,)`, and of each piece `(batch, target_len)`.

        An empty target is the end at once, and has that one's probability; as the target of an empty text it scores 0,
        as that text's translation does.
        """
        source, truncated = self._source(text)
        limit = default_limit(self._servable.max_source_length, 0, (), self._model.longest)
        target, cut = self._ids(
            target,
            self._servable.target_tokenizer,
            self._servable.max_length or limit,
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
        known = (source >= 0) & (source < self._model.source_vocab_size)
        source, truncated = self._cut(tf.where(known, source, self._servable.source_tokenizer.unk_id))
        empty = tf.cast(tf.shape(source)[1] == 0, tf.int32)  # at least one column
        source = tf.pad(source, [[0, 0], [0, empty]], constant_values=self._model.pad_id)
        tokens, lengths, scores = self._search(source)
        return {"tokens": tokens, "lengths": lengths, "scores": scores, "truncated": truncated}

    def _cut(self, source):
        """Ids `(batch, source_len)` within the limit; and which were cut."""
        limit = self._servable.max_source_length
        return source[:, :limit], tf.reduce_any(source[:, limit:] != self._model.pad_id, axis=1)

    def _source_ids(self, text):
        return self._ids(text, self._servable.source_tokenizer, self._servable.max_source_length)

    def _ids(self, text, tokenizer, limit, ends=False):
        """Texts as ids, int32 `(batch, length)`, each cut to the limit and ended by eos; and which were cut.

        A text without a token gets no eos either, unless `ends` says so: a row of padding, whose answer is empty.
        """
        text, truncated = readable(text, limit)
        ids = tokenizer.tokenize(text)
        lengths = ids.row_lengths()
        truncated |= lengths >= limit
        ends = tf.cast((lengths > 0) | ends, tf.int64)
        ends = tf.RaggedTensor.from_row_lengths(tf.fill((tf.reduce_sum(ends),), self._model.eos_id), ends)
        ids = tf.concat([ids[:, : limit - 1], ends], axis=1).to_tensor(self._model.pad_id)
        empty = tf.cast(tf.shape(ids)[1] == 0, tf.int32)  # at least one column
        return tf.pad(ids, [[0, 0], [0, empty]], constant_values=self._model.pad_id), truncated

    def _texts(self, ids):
        """The texts of ids `(batch, length)`, without the model's padding, which a tokenizer may not know."""
        pad_id, tokenizer = self._model.pad_id, self._servable.target_tokenizer
        if tokenizer.pad_id == pad_id or pad_id == tokenizer.eos_id:
            return tokenizer.detokenize(ids)
        rows = tf.ragged.boolean_mask(ids, ids != pad_id)
        return tokenizer.detokenize(rows)

    def _pieces_function(self, tokenizer):
        """A function from ids to their pieces, padding to empty strings."""

        def pieces(ids):
            table = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
            known = (ids >= 0) & (ids < tokenizer.vocab_size)
            return tf.where(
                ids == self._model.pad_id, "", tf.gather(table, tf.where(known, ids, tokenizer.unk_id))
            )

        return function_of(pieces, ids=tf.TensorSpec((None, None), tf.int32))

    def _search_chunks(self, source):
        """The hypotheses of sources `(batch, source_len)`: tokens `(batch, n, target_len)`, lengths, scores."""
        servable = self._servable
        strategy, constraints = servable.strategy, servable.constraints
        seed = getattr(strategy, "seed", 0)
        if seed is None:  # other samples with each call
            seed = tf.random.uniform((), maxval=tf.int32.max, dtype=tf.int32)
        seed = tf.convert_to_tensor(seed, tf.int32)

        def search(source, seed):
            return self._model.search(
                source, strategy, servable.max_length, constraints=constraints, seed=seed
            )

        step = self._shaped(search)
        longest = servable.max_length or default_limit(
            self._padded_length(source), 0, constraints, self._model.longest
        )
        n = strategy.n_best
        with self._computing():
            tokens, lengths, scores = self._in_chunks(
                lambda rows: step(rows, seed),
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


class Signatures(Searches):
    """The functions of a translator's graph."""

    about = SIGNATURES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        text, target = (tf.TensorSpec((None,), tf.string, name=name) for name in ("text", "target"))
        source = tf.TensorSpec((None, None), tf.int32, name="source")
        return {
            "serving_default": function_of(self.translate, text=text),
            "n_best": function_of(self.n_best, text=text),
            "alignment": function_of(self.alignment, text=text),
            "score": function_of(self.score, text=text, target=target),
            "tokens": function_of(self.tokens, source=source),
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
        n, length = self._servable.strategy.n_best, tf.shape(tokens)[2]
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
