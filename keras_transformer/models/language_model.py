"""The decoder alone: a language model."""

import functools

import keras

from keras_transformer.checks import check, check_ids
from keras_transformer.execution import ops
from keras_transformer.execution.int8 import two_parts
from keras_transformer.layers import Place
from keras_transformer.layers.attention import pack, unpack
from keras_transformer.layers.embedding import positions_from
from keras_transformer.masks import lengths_of, segment_mask
from keras_transformer.models.base import BaseModel
from keras_transformer.models.generation import Generation, Scores, left_padded, log_probs_of, tree_step
from keras_transformer.models.r_drop import RDrop


@keras.saving.register_keras_serializable("keras_transformer")
class LanguageModel(RDrop, Generation, BaseModel):
    """A stack of decoder layers over an embedding: ids in, logits of the token after each out.

    Radford et al., 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.3. The parts are
    handed in and used as they are (docs/parts.md).

    Args:
        embeddings: `Embeddings`.
        decoder: A `Decoder`.
        output: A `TokenEmbedding`, which scores the ids; None for that of the embeddings.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a text where a prompt has no token.
        eos_id: The id that ends a text.
        stop_ids: Other ids at which an output ends too, such as the end of a turn in a chat; a sequence of int.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int `(batch, length)`, padded on the right with `pad_id`; or a dict of such `token_ids` and their
            `segment_ids`, int of the same shape, as `data.PackedTexts` gives them: texts one after another, each with a
            number of its own, 0 for padding. No text sees another, and each has its positions from 0 on.
        training: Whether to drop.
        return_attention_scores: Whether to return each layer's attention scores too,
            `(batch, num_heads, length, length)`.

    Returns:
        Logits, float32 `(batch, length, vocab_size)`; then the scores, where asked for.

    Raises:
        ValueError: If a part has another class or width, or an id is not in the vocabulary.

    >>> from keras_transformer.layers import Embeddings
    >>> model = LanguageModel(Embeddings(11, 4), Decoder(1, num_heads=2, d_ff=8))
    >>> model(np.array([[5, 7, 0]])).shape
    TensorShape([1, 3, 11])
    """

    shares_positions = True

    decided_by = ("embeddings", "decoder", "output_embedding", "pad_id", "bos_id", "eos_id", "stop_ids")

    def __init__(
        self, embeddings, decoder, *, output=None, pad_id=0, bos_id=2, eos_id=3, stop_ids=(), **kwargs
    ):
        super().__init__(**kwargs)
        # Token ids keep their dtype.
        self.autocast = False
        self.embeddings = self.built_embeddings(embeddings, "embeddings", pad_id)
        self.output_embedding = self.built_output(output, embeddings, "embeddings")
        self.vocab_size = self.source_vocab_size = self.target_vocab_size = self.embeddings.input_dim
        self.d_model = self.embeddings.output_dim
        check_ids(self.vocab_size, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        check(isinstance(stop_ids, (list, tuple)), "`stop_ids` must be a list of ids.", stop_ids=stop_ids)
        for stop_id in stop_ids:
            check_ids(self.vocab_size, stop_ids=stop_id)
        self.pad_id = pad_id
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.stop_ids = tuple(stop_ids)
        self.max_positions = self.max_source_positions = self.embeddings.max_length
        self.decoder = self.built_decoder(decoder, [(None, None, self.d_model)])
        self.built = True

    def int8_config(self):
        """Returns a configuration whose inputs have two int8 parts: a language model has few, very large inputs."""
        return two_parts()

    def hidden(self, token_ids, cache=None, index=None, *, training=None, return_attention_scores=False):
        """Computes the decoder's outputs, before the output projection.

        Args:
            token_ids: int `(batch, length)`, the tokens at slot `index` and after.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: With a cache the slot of the first token; 0 when None. Or a `Place`.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.

        Returns:
            `(batch, length, d_model)`; then the scores, then the new cache, where asked for or given.
        """
        place = index if cache is not None else Place.of(index, real=ops.not_equal(token_ids, self.pad_id))
        results = self.decoder(
            self.embeddings(token_ids, index=index, training=training),
            training=training,
            return_attention_scores=return_attention_scores,
            cache=cache,
            index=place,
        )
        x, scores, cache = unpack(results, return_attention_scores, cache is not None)
        return pack(x, scores, cache)

    def decode(self, token_ids, cache=None, index=None, *, training=None, return_attention_scores=False):
        """Scores the next token after each position: all at once, in chunks or step by step.

        Args:
            token_ids: int `(batch, length)`, the tokens at slot `index` and after.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: With a cache the slot of the first token; 0 when None. Or a `Place`.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.

        Returns:
            Logits, float32 `(batch, length, vocab_size)`; then the scores, then the new cache, where asked for or
            given.
        """
        options = {"training": training, "return_attention_scores": return_attention_scores}
        results = self.hidden(token_ids, cache, index, **options)
        x, scores, cache = unpack(results, return_attention_scores, cache is not None)
        return pack(self.output_embedding(x, reverse=True), scores, cache)

    def call(self, inputs, training=None, return_attention_scores=False):
        options = {"training": training, "return_attention_scores": return_attention_scores}
        if not isinstance(inputs, dict):
            return self.decode(ops.cast(inputs, "int32"), **options)
        rule = "`inputs` must be ids, or a dict of `token_ids` and `segment_ids`."
        check(inputs.keys() == {"token_ids", "segment_ids"}, rule, inputs=sorted(inputs))
        segment_ids = ops.cast(inputs["segment_ids"], "int32")
        return self.decode(
            ops.cast(inputs["token_ids"], "int32"),
            index=Place(
                positions=positions_in_segments(segment_ids),
                mask=segment_mask(segment_ids),
                real=ops.not_equal(segment_ids, 0),
            ),
            **options,
        )

    def input_signature(self):
        return [keras.KerasTensor((None, None), "int32")]

    def _checked_source(self, source):
        source = super()._checked_source(source)
        if self.pad_id not in (self.bos_id, self.eos_id, *self.stop_ids):
            ids = ops.convert_to_numpy(source)
            if ((ids[:, 0] == self.pad_id) & (ids != self.pad_id).any(axis=1)).any():
                raise ValueError(
                    "`source` must be padded on the right: padding on the left would be read as tokens. "
                    f"Received: {ids.tolist()!s:.200}."
                )
        return source

    def start(self, source, width=1, prefix=None):
        if prefix is not None:
            raise ValueError(
                "`prefix` must be None for a language model: append it to the prompts in `source`."
            )
        batch_size, length = ops.shape(source)
        prompt, starts = self._prompts(source)
        decode = functools.partial(self.decode, training=False)
        step, cache = tree_step(decode, self.decoder, batch_size, width, length - 1, starts)
        if not (isinstance(length, int) and length == 1):
            _, cache = step(prompt[:, None, :-1], cache, 0)
        return (
            lambda tokens, cache, index: step(tokens, cache, index + length - 1),
            cache,
            prompt[:, -1],
            None,
        )

    def _prompts(self, source):
        """Moves prompts to the right end, starts empty ones with `bos_id`, and returns the slots where they start."""
        empty = ops.equal(source[:, :1], self.pad_id)
        source = ops.concatenate([ops.where(empty, self.bos_id, source[:, :1]), source[:, 1:]], axis=1)
        # A row has a token even where `bos_id` is `pad_id`.
        lengths = ops.maximum(lengths_of(source, self.pad_id), 1)
        return left_padded(source, lengths, self.pad_id)

    def score_all(self, source, target):
        batch_size, n, target_len = ops.shape(target)
        prompt, starts = (ops.repeat(x, n, axis=0) for x in self._prompts(source))
        flat = ops.reshape(target, (batch_size * n, target_len))
        slots = ops.arange(ops.shape(source)[1] + target_len - 1, dtype="int32")
        logits = self.decode(
            ops.concatenate([prompt, flat[:, :-1]], axis=1),
            index=Place(
                positions=ops.maximum(slots - starts[:, None], 0),
                mask=ops.expand_dims(slots >= starts[:, None], (1, 2)),
            ),
            training=False,
        )
        log_probs, _ = log_probs_of(flat, logits[:, ops.shape(source)[1] - 1 :], self.pad_id)
        log_probs = ops.reshape(log_probs, (batch_size, n, target_len))
        return Scores(ops.sum(log_probs, axis=-1), log_probs, None)


def positions_in_segments(segment_ids):
    """Counts the position of each token in its own text.

    Args:
        segment_ids: int `(batch, length)`, the number of each token's text. Texts are contiguous: where the number
            changes, one begins, whether or not its number stood there before.

    Returns:
        int32 `(batch, length)`, how many tokens of the same text come before each.

    >>> positions_in_segments(np.array([[1, 1, 2, 2, 2]])).numpy().tolist()
    [[0, 1, 0, 1, 2]]
    """
    segment_ids = ops.convert_to_tensor(segment_ids)
    changes = ops.not_equal(segment_ids[:, 1:], segment_ids[:, :-1])
    begins = ops.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    slots = positions_from(0, segment_ids)
    # The first slots of a row's texts, in order. No `(length, length)` is made.
    first = ops.sort(ops.where(begins, slots, ops.shape(segment_ids)[1]), axis=1)
    return slots - ops.take_along_axis(first, ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1, axis=1)
