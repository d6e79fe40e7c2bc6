"""The decoder alone: a language model."""

import keras
from keras import ops

from keras_transformer.checks import check_ids, check_positive
from keras_transformer.decoding import Greedy, decode, row_keys
from keras_transformer.layers import Decoder, Dropout, TokenEmbedding
from keras_transformer.layers.cache import TreeCache
from keras_transformer.layers.parts import clone, described, part
from keras_transformer.layers.shapes import packed, unpacked
from keras_transformer.models.generation import Generation, default_limit, left_padded, lengths_of, seed_of


@keras.saving.register_keras_serializable("keras_transformer")
class LanguageModel(Generation, keras.Model):
    """A stack of decoder layers over an embedding: ids in, logits of the token after each out.

    Radford et al., 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.3. What it is made of
    is handed in: TinyLlama (Zhang et al., 2024, section 2.2) is the same model of other parts,

        norm = RMSNormalization(1e-5)
        heads = MultiHeadAttention(
            32, 64, num_key_value_heads=4, use_bias=False, positions=RotaryPositions())
        decoder = Decoder(
            22, attention=heads, feed_forward=GatedFeedForward(5632), residual=Residual(0.0, True, norm=norm))
        LanguageModel(32000, 2048, decoder, tie_embeddings=False)

    Args:
        vocab_size: Number of ids.
        d_model: Width of the model.
        decoder: A `Decoder`, the template of its own.
        positions: A layer that adds positions to the embeddings, such as `LearnedPositions(1024)`; None where the
            attention has them.
        dropout: Share dropped, in training, of the embeddings.
        tie_embeddings: Whether the output projection is the embedding's.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a text where a prompt has no token.
        eos_id: The id that ends a text.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        token_ids: int `(batch, length)`, padded on the right with `pad_id`.
        training: Whether to drop out.
        return_attention_scores: Whether to return each layer's attention weights too,
            `(batch, num_heads, length, length)`.

    Returns:
        Logits, float32 `(batch, length, vocab_size)`; then the scores, where asked for.

    Raises:
        ValueError: If a size is not positive, or an id is not in the vocabulary.
    """

    def __init__(
        self,
        vocab_size,
        d_model,
        decoder,
        positions=None,
        *,
        dropout=0.0,
        tie_embeddings=True,
        pad_id=0,
        bos_id=2,
        eos_id=3,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.autocast = False  # token ids keep their dtype; the layers cast what they compute with
        check_positive(vocab_size=vocab_size, d_model=d_model)
        check_ids(vocab_size, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        decoder = part(decoder)
        if not isinstance(decoder, Decoder):
            raise ValueError(f"`decoder` must be a `Decoder`. Received: decoder={decoder!r}.")
        self.vocab_size = self.source_vocab_size = vocab_size  # of prompts, as of what follows them
        self.d_model = d_model
        self.dropout = dropout
        self.tie_embeddings = tie_embeddings
        self.pad_id = pad_id
        self.bos_id = bos_id
        self.eos_id = eos_id
        policy = self.dtype_policy
        self.token_embedding = TokenEmbedding(
            vocab_size, d_model, scale=1.0, dtype=policy, name="token_embedding"
        )
        self.output_embedding = self.token_embedding
        if not tie_embeddings:
            self.output_embedding = TokenEmbedding(
                vocab_size, d_model, scale=1.0, dtype=policy, name="output_embedding"
            )
        self.positions = None if positions is None else clone(positions, name="positions", dtype=policy)
        self.drop = Dropout(dropout, dtype=policy, name="drop")
        self.decoder = clone(decoder, name="decoder", dtype=policy)
        self.build()

    def build(self, input_shape=None):
        if self.built:
            return
        shape = (None, None, self.d_model)
        self.token_embedding.build()
        if not self.tie_embeddings:
            self.output_embedding.build()
        if self.positions is not None:
            self.positions.build(shape)
        self.drop.build(shape)
        self.decoder.build(shape)
        self.built = True

    def decode(
        self,
        token_ids,
        cache=None,
        index=0,
        *,
        positions=None,
        key_positions=None,
        attention_mask=None,
        output_kernel=None,
        training=None,
        return_attention_scores=False,
    ):
        """Scores the next token after each position: all at once, in chunks or step by step.

        Args:
            token_ids: int `(batch, length)`, the tokens at slot `index` and after.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: Slot of the first token; with a cache only.
            positions: int `(length,)` or `(batch, length)`, where the tokens stand, where that is not their slot.
            key_positions: int `(slots,)` or `(batch, slots)`, likewise for the keys.
            attention_mask: bool, broadcastable to `(batch, 1, length, slots)`, or None for all.
            output_kernel: What `output_embedding.output_kernel` gave, or None.
            training: Whether to drop out.
            return_attention_scores: Whether to return each layer's attention weights too.

        Returns:
            Logits, float32 `(batch, length, vocab_size)`; then the scores, then the new cache, where asked for or
            given.
        """
        x = self.token_embedding(token_ids)
        if self.positions is not None:
            x = self.positions(x, start_index=index, positions=positions)
        results = self.decoder(
            self.drop(x, training=training),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
            cache=cache,
            index=index,
            positions=positions,
            key_positions=key_positions,
        )
        x, scores, cache = unpacked(results, return_attention_scores, cache is not None)
        scores = None if scores is None else [own for own, _ in scores]
        return packed(self.output_embedding.logits(x, output_kernel), scores=scores, cache=cache)

    def call(self, token_ids, training=None, return_attention_scores=False):
        token_ids = ops.cast(token_ids, "int32")
        return self.decode(token_ids, training=training, return_attention_scores=return_attention_scores)

    def generate(
        self,
        source,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        jit_compile=None,
        *,
        constraints=(),
    ):
        """Goes on with each prompt.

        Args:
            source: int `(batch, source_len)`, prompts of any lengths, padded on the right. What is padding alone begins
                with `bos_id`.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
            max_length: Most tokens after a prompt, `eos_id` included. None for twice the prompt's length plus 16.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: What every continuation must satisfy, such as `[NoRepeatNgram(3)]`.

        Returns:
            `Hypotheses(tokens, lengths, scores)` of what follows the prompts: int32 `(batch, n_best, max_length)`,
            int32 `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` is not of rank 2 or empty, `max_length` is not positive, or the constraints
                contradict one another.
        """
        return super().generate(source, strategy, max_length, jit_compile, constraints=constraints)

    def search(self, source, strategy, max_length=None, *, constraints=(), seed=None):
        """What `generate` compiles: tensors in, tensors out, for use inside a graph. Arguments as there; `seed` as for
        `Transformer.search`."""
        lengths = lengths_of(source, self.pad_id)
        row_limits = max_length
        if max_length is None:
            max_length = default_limit(ops.shape(source)[1], 0, constraints)
            row_limits = default_limit(lengths, 0, constraints)
        step, cache, last = self.start(source, strategy.width)
        return decode(
            step,
            cache,
            strategy,
            last,
            max_length,
            constraints=constraints,
            row_limits=row_limits,
            source_lengths=lengths,
            keys=row_keys(source, self.pad_id),
            seed=seed_of(strategy, seed),
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )

    def start(self, source, width=1):
        """Reads prompts, and prepares the step that continues them.

        Args:
            source: int `(batch, source_len)`, padded on the right.
            width: Number of hypotheses for each prompt.

        Returns:
            `step(tokens, cache, index) -> (logits, cache)`, as `decoding.decode` takes it; the cache of all tokens but
            each prompt's last; and these, int32 `(batch, 1)`.
        """
        batch_size, length = ops.shape(source)
        empty = ops.equal(source[:, :1], self.pad_id)
        source = ops.concatenate([ops.where(empty, self.bos_id, source[:, :1]), source[:, 1:]], axis=1)
        prompt, starts = left_padded(source, lengths_of(source, self.pad_id), self.pad_id)
        kernel = self.output_embedding.output_kernel()

        def step(tokens, cache, index):
            _, branches, count = ops.shape(tokens)
            cache, place = cache.at(index, count, starts)
            logits, layers = self.decode(
                ops.reshape(tokens, (batch_size, -1)),
                cache.layers,
                place.slot,
                positions=place.positions,
                key_positions=place.key_positions,
                attention_mask=place.mask,
                output_kernel=kernel,
                training=False,
            )
            logits = ops.reshape(logits, (batch_size, branches, count, self.vocab_size))
            return logits, cache._replace(layers=layers)

        ancestors = ops.zeros((batch_size, width, 0), "int32")
        cache = TreeCache(self.decoder.empty_cache(batch_size, length - 1), ancestors)
        if not (isinstance(length, int) and length == 1):
            _, cache = step(prompt[:, None, :-1], cache, 0)
        return lambda tokens, cache, index: step(tokens, cache, index + length - 1), cache, prompt[:, -1:]

    def get_config(self):
        return {
            **super(keras.Model, self).get_config(),  # the layer's: name, dtype, trainable
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "decoder": described(self.decoder),
            "positions": described(self.positions),
            "dropout": self.dropout,
            "tie_embeddings": self.tie_embeddings,
            "pad_id": self.pad_id,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)
