"""What all encoder-decoder models of this library's stacks share: the passes, whatever the parts."""

import functools
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.checks import check_ids, check_positive
from keras_transformer.layers.cache import check_no_index
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.shapes import packed, unpacked
from keras_transformer.masks import padding_mask
from keras_transformer.models.base import BaseModel
from keras_transformer.models.generation import Generation
from keras_transformer.models.tree_search import tree_search


class Memory(NamedTuple):
    """An encoded source.

    states: `(batch, source_len, d_model)`, or what the decoder's `project_memory` made of it.
    mask: bool `(batch, 1, 1, source_len)`, True where a token is real.
    """

    states: Any
    mask: Any


class EncoderDecoder(Generation, BaseModel):
    """An encoder over an embedding, a decoder over another: ids in, logits out. The base of `Transformer` and `T5`.

    One forward pass serves training, prefill and single steps: `decode` with a cache or without.

    A subclass makes the parts and calls `build`: `source_embedding` and `target_embedding`, which may be one;
    `output_embedding`, the target's or one of its own; `positions`, what adds positions to embeddings, or None;
    `drop`; `encoder`, an `Encoder`; `decoder`, a `Decoder`.

    Args:
        source_vocab_size: Number of source ids.
        target_vocab_size: Number of target ids.
        d_model: Width of the model.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted
            right: it starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop out.
        return_attention_scores: Whether to return a dict of attention weights too: `encoder`, `decoder` and
            `cross`, lists with `(batch, num_heads, length, length)` for each layer.

    Returns:
        Logits, float32 `(batch, target_len, target_vocab_size)`.

    Raises:
        ValueError: If a size is not positive, or an id is not in the vocabulary.
    """

    def __init__(self, source_vocab_size, target_vocab_size, d_model, *, pad_id, bos_id, eos_id, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False  # token ids keep their dtype; the layers cast what they compute with
        check_positive(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, d_model=d_model
        )
        check_ids(min(source_vocab_size, target_vocab_size), pad_id=pad_id)
        check_ids(target_vocab_size, bos_id=bos_id, eos_id=eos_id)
        self.source_vocab_size = source_vocab_size
        self.target_vocab_size = target_vocab_size
        self.d_model = d_model
        self.pad_id = pad_id
        self.bos_id = bos_id
        self.eos_id = eos_id

    def _make_embeddings(self, share_embeddings, output_bias, **arguments):
        """Makes the embeddings, one for both sides if they share; the target's gives the logits too.

        Raises:
            ValueError: If they are to be shared between vocabularies of different sizes.
        """
        sizes = self.source_vocab_size, self.target_vocab_size
        if share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                "`share_embeddings=True` needs one vocabulary. Received: "
                f"source_vocab_size={sizes[0]}, target_vocab_size={sizes[1]}."
            )
        self.share_embeddings = share_embeddings
        self.output_bias = output_bias
        arguments = {"dtype": self.dtype_policy, **arguments}
        self.target_embedding = self.output_embedding = self.source_embedding = TokenEmbedding(
            sizes[1], self.d_model, output_bias=output_bias, **arguments, name="target_embedding"
        )
        if not share_embeddings:
            self.source_embedding = TokenEmbedding(
                sizes[0], self.d_model, **arguments, name="source_embedding"
            )

    def build(self, input_shape=None):
        if self.built:
            return
        for embedding in (self.target_embedding, self.source_embedding, self.output_embedding):
            if not embedding.built:
                embedding.build()
        shape = (None, None, self.d_model)
        if self.positions is not None:
            self.positions.build(shape)
        self.drop.build(shape)
        self.encoder.build(shape)
        self.decoder.build(shape, shape)
        self.built = True

    def encode(self, source, training=None, return_attention_scores=False):
        """Encodes sources.

        Args:
            source: int `(batch, source_len)`.
            training: Whether to drop out.
            return_attention_scores: Whether to return each layer's attention weights too.

        Returns:
            A `Memory`.
        """
        mask = padding_mask(source, self.pad_id)
        x = self._embed(self.source_embedding, source, 0, training)
        results = self.encoder(
            x, padding_mask=mask, training=training, return_attention_scores=return_attention_scores
        )
        x, scores, _ = unpacked(results, return_attention_scores, cache=False)
        return packed(Memory(x, mask), scores=scores)

    def decode(
        self,
        target,
        memory,
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
        """Scores the next token after each target position: all at once, in chunks or step by step.

        Args:
            target: int `(batch, target_len)`, the tokens at slot `index` and after.
            memory: What `encode` gave, for every row.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: Slot of the first token; with a cache only.
            positions: int `(target_len,)` or `(batch, target_len)`, where the tokens stand in their sequences,
                where that is not their slot.
            key_positions: int `(slots,)` or `(batch, slots)`, likewise for the keys.
            attention_mask: bool, broadcastable to `(batch, 1, target_len, length)`: what self-attention may see
                of what came before, or None for all.
            output_kernel: What `output_embedding.output_kernel` gave, or None.
            training: Whether to drop out.
            return_attention_scores: Whether to return each layer's pair of attention weights too.

        Returns:
            Logits, float32 `(batch, target_len, target_vocab_size)`; then the scores, then the new cache, where
            asked for or given.
        """
        if cache is None:
            check_no_index(index)
        x = self._embed(self.target_embedding, target, index, training, positions)
        token_mask = None
        if cache is None and self.decoder.counts_tokens:
            token_mask = ops.not_equal(target, self.pad_id)
        results = self.decoder(
            x,
            memory=memory.states,
            memory_padding_mask=memory.mask,
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
        return packed(self.output_embedding.logits(x, output_kernel), scores=scores, cache=cache)

    def _embed(self, embedding, token_ids, index, training, positions=None):
        x = embedding(token_ids)
        if self.positions is not None:
            x = self.positions(x, start_index=index, positions=positions)
        return self.drop(x, training=training)

    def call(self, inputs, training=None, return_attention_scores=False):
        if not isinstance(inputs, dict) or not {"source", "target"} <= inputs.keys():
            raise ValueError(
                f"`inputs` must be a dict with `source` and `target`. Received: {inputs!r:.200}."
            )
        source, target = (ops.cast(inputs[side], "int32") for side in ("source", "target"))
        if not return_attention_scores:
            return self.decode(target, self.encode(source, training), training=training)
        memory, encoder = self.encode(source, training, return_attention_scores=True)
        logits, pairs = self.decode(target, memory, training=training, return_attention_scores=True)
        decoder, cross = map(list, zip(*pairs, strict=True))
        return logits, {"encoder": encoder, "decoder": decoder, "cross": cross}

    def start(self, source, width=1, prompt_len=1, starts=None):
        """Encodes sources and prepares the step that continues them.

        Args:
            source: int `(batch, source_len)`.
            width: Number of hypotheses for each source; all attend to one memory, which is not repeated.
            prompt_len: Number of tokens that each target begins with, an int or an int scalar tensor.
            starts: int `(batch,)`, where each row's prompt starts, when rows are padded on the left.

        Returns:
            `step(tokens, cache, index) -> (logits, cache)`, as `decoding.decode` takes it, and the first cache, a
            `TreeCache` with room for all of the prompt but its last token. It must grow before a step.
        """
        memory = self.encode(source, training=False)
        memory = Memory(self.decoder.project_memory(memory.states), memory.mask)
        # Transposed here, outside the loop: with few rows a product with a transposed matrix takes 2-4 times as long.
        kernel = self.output_embedding.output_kernel()
        decode = functools.partial(self.decode, memory=memory, output_kernel=kernel, training=False)
        return tree_search(decode, self.decoder, ops.shape(source)[0], width, prompt_len - 1, starts)

    def get_config(self):
        return {
            **super().get_config(),
            "source_vocab_size": self.source_vocab_size,
            "target_vocab_size": self.target_vocab_size,
            "d_model": self.d_model,
            "pad_id": self.pad_id,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
        }
