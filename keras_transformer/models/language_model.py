"""The decoder alone: a language model."""

import keras
from keras import ops

from keras_transformer.checks import check_ids, check_positive
from keras_transformer.layers import Decoder, Dropout, TokenEmbedding
from keras_transformer.layers.parts import clone, described, part
from keras_transformer.layers.positions import check_adds_positions, positions_in_segments
from keras_transformer.layers.shapes import packed, unpacked
from keras_transformer.masks import segment_mask
from keras_transformer.models.base import BaseModel
from keras_transformer.models.continuation import Continuation


@keras.saving.register_keras_serializable("keras_transformer")
class LanguageModel(Continuation, BaseModel):
    """A stack of decoder layers over an embedding: ids in, logits of the token after each out.

    Radford et al., 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.3. What it is made of
    is handed in (docs/parts.md).

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
        inputs: int `(batch, length)`, padded on the right with `pad_id`; or a dict of such `token_ids` and their
            `segment_ids`, int of the same shape, as `data.PackedTexts` gives them: texts one after another, each with a
            number of its own, 0 for padding. No text sees another, and each has its positions from 0 on.
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
        self.autocast = False  # token ids keep their dtype
        check_positive(vocab_size=vocab_size, d_model=d_model)
        check_ids(vocab_size, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        check_adds_positions(positions)
        self.vocab_size = self.source_vocab_size = self.target_vocab_size = vocab_size
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
        self.decoder = clone(part(decoder, "decoder", Decoder), name="decoder", dtype=policy)
        self.build()

    def build(self, input_shape=None):
        if self.built:
            return
        shape = (None, None, self.d_model)
        for embedding in (self.token_embedding, self.output_embedding):
            if not embedding.built:
                embedding.build()
        if self.positions is not None:
            self.positions.build(shape)
        self.drop.build(shape)
        self.decoder.build(shape)
        self.built = True

    def hidden(
        self,
        token_ids,
        cache=None,
        index=0,
        *,
        positions=None,
        key_positions=None,
        attention_mask=None,
        token_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        """The decoder's outputs, which the logits are products of. Arguments as for `decode`.

        Returns:
            `(batch, length, d_model)`; then the scores, then the new cache, where asked for or given.
        """
        x = self.token_embedding(token_ids)
        if self.positions is not None:
            x = self.positions(x, start_index=index, positions=positions)
        if token_mask is None and cache is None and self.decoder.counts_tokens:
            token_mask = ops.not_equal(token_ids, self.pad_id)
        results = self.decoder(
            self.drop(x, training=training),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
            cache=cache,
            index=index,
            positions=positions,
            key_positions=key_positions,
            token_mask=token_mask,
        )
        x, scores, cache = unpacked(results, return_attention_scores, cache is not None)
        return packed(x, scores=None if scores is None else [own for own, _ in scores], cache=cache)

    def decode(
        self,
        token_ids,
        cache=None,
        index=0,
        *,
        output_kernel=None,
        return_attention_scores=False,
        **options,
    ):
        """Scores the next token after each position: all at once, in chunks or step by step.

        Args:
            token_ids: int `(batch, length)`, the tokens at slot `index` and after.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: Slot of the first token; with a cache only.
            output_kernel: What `output_embedding.output_kernel` gave, or None.
            return_attention_scores: Whether to return each layer's attention weights too.
            **options: `training`, and as in `DecoderLayer`: `positions`, `key_positions`, `attention_mask` and
                `token_mask`; that is what is no `pad_id` when None.

        Returns:
            Logits, float32 `(batch, length, vocab_size)`; then the scores, then the new cache, where asked for or
            given.
        """
        results = self.hidden(
            token_ids, cache, index, return_attention_scores=return_attention_scores, **options
        )
        x, scores, cache = unpacked(results, return_attention_scores, cache is not None)
        return packed(self.output_embedding.logits(x, output_kernel), scores=scores, cache=cache)

    def call(self, inputs, training=None, return_attention_scores=False):
        options = {"training": training, "return_attention_scores": return_attention_scores}
        if not isinstance(inputs, dict):
            return self.decode(ops.cast(inputs, "int32"), **options)
        if inputs.keys() != {"token_ids", "segment_ids"}:
            raise ValueError(
                f"`inputs` must be ids, or a dict of `token_ids` and `segment_ids`. Received: {sorted(inputs)}."
            )
        segment_ids = ops.cast(inputs["segment_ids"], "int32")
        return self.decode(
            ops.cast(inputs["token_ids"], "int32"),
            positions=positions_in_segments(segment_ids),
            attention_mask=segment_mask(segment_ids),
            token_mask=ops.not_equal(segment_ids, 0) if self.decoder.counts_tokens else None,
            **options,
        )

    def get_config(self):
        return {
            **super().get_config(),
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
