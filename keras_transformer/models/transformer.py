"""Encoder-decoder models: any two stacks, and the Transformer of the paper."""

import functools
from typing import Any, NamedTuple

import keras

from keras_transformer.checks import check, check_choice, check_ids
from keras_transformer.execution import ops
from keras_transformer.keras_internals import implicit_mask
from keras_transformer.layers import Decoder, Embeddings, Encoder, Place, PositionalEncoding
from keras_transformer.layers.attention import pack, unpack
from keras_transformer.layers.base import check_arguments, pop_keras_arguments
from keras_transformer.masks import lengths_of, padding_mask
from keras_transformer.models.base import BaseModel, signature_of
from keras_transformer.models.generation import (
    Generation,
    Scores,
    left_padded,
    log_probs_of,
    rows_of,
    tree_step,
)
from keras_transformer.models.r_drop import RDrop

PRESETS = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1},
    "big": {"num_layers": 6, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
}


class Memory(NamedTuple):
    """An encoded source.

    states: `(batch, source_len, d_model)`, or the result of the decoder's `project_memory`.
    mask: bool `(batch, 1, 1, source_len)`, True where a token is real; None where all are.
    """

    states: Any
    mask: Any


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderDecoder(RDrop, Generation, BaseModel):
    """An encoder over a source and a decoder over ids: logits out. `Transformer` and `T5` are such models.

    One forward pass serves training, prefill and single steps: `decode` with a cache or without. The parts are handed
    in and used as they are (docs/parts.md).

    Args:
        source: A layer that gives `(batch, source_len, d_model)`: `Embeddings` of ids; or any other, such as
            `ConvolutionalSubsampling` of a spectrogram, or a pretrained model. What it reads is a tensor or a nest of
            tensors, batch first. Its padding is what its mask says, as Keras computes it; without one there is none.
        encoder: An `Encoder`.
        target: `Embeddings`; may be `source` too.
        decoder: A `Decoder`.
        output: A `TokenEmbedding`, which scores the ids; None for that of `target` (section 3.4 of the paper).
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)` or what another layer reads; `target`, int `(batch,
            target_len)`, shifted right: it starts with `bos_id`. Both are padded on the right with `pad_id`. Or the
            tuple `(source, target)`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too: a dict of `encoder`, `decoder` and
            `cross`, lists with `(batch, num_heads, length, length)` for each layer.

    Returns:
        Logits, float32 `(batch, target_len, target_vocab_size)`; then the scores, where asked for.

    Raises:
        ValueError: If a part has another class or width, an id is not in the vocabulary, or `eos_id` is `pad_id`.

    >>> source, target = (Embeddings(11, 4, PositionalEncoding(), scale=2.0) for _ in range(2))
    >>> model = EncoderDecoder(source, Encoder(1, 2, 8), target, Decoder(2, 2, 8))
    >>> model({"source": np.ones((2, 5), "int32"), "target": np.ones((2, 3), "int32")}).shape
    TensorShape([2, 3, 11])
    """

    encoder_class, decoder_class = Encoder, Decoder
    decided_by = ("source", "encoder", "target", "decoder", "output_embedding", "pad_id", "bos_id", "eos_id")

    def __init__(
        self, source, encoder, target, decoder, *, output=None, pad_id=0, bos_id=2, eos_id=3, **kwargs
    ):
        super().__init__(**kwargs)
        # Token ids keep their dtype; the layers cast what they compute with.
        self.autocast = False
        rule = "`source` must be a layer that gives `(batch, source_len, d_model)`, such as `Embeddings`."
        check(isinstance(source, keras.layers.Layer), rule, source=source)
        self.source, self.reads_ids = source, isinstance(source, Embeddings)
        if self.reads_ids:
            self.built_embeddings(source, "source", pad_id)
        self.source_vocab_size = source.input_dim if self.reads_ids else None
        self.target = self.built_embeddings(target, "target", pad_id)
        self.output_embedding = self.built_output(output, target, "target")
        self.target_vocab_size, self.d_model = target.input_dim, target.output_dim
        check_ids(self.target_vocab_size, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        rule = "`eos_id` must not be `pad_id`: it would be masked, and no output would learn to end."
        check(pad_id != eos_id, rule, pad_id=pad_id, eos_id=eos_id)
        if self.reads_ids:
            check_ids(source.input_dim, pad_id=pad_id)
            rule = "`source` and `target` must have one `output_dim`."
            check(source.output_dim == self.d_model, rule, source=source.output_dim, target=self.d_model)
        self.pad_id = pad_id
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.max_positions = self.target.max_length
        self.max_source_positions = source.max_length if self.reads_ids else None
        shape = (None, None, self.d_model)
        self.encoder = self.built_encoder(encoder, shape, self.encoder_class)
        self.decoder = self.built_decoder(decoder, [shape, shape], self.decoder_class)
        self.built = True

    def _embedded(self, source, training, vectors=None):
        """Returns the encoder's input, and its padding mask: bool `(batch, 1, 1, source_len)`, or None for none."""
        if self.reads_ids:
            mask = padding_mask(source, self.pad_id)
            return self.source(source, vectors=vectors, training=training), mask
        check(vectors is None, "`vectors` need a source of ids.", source=self.source)
        x = self.source(source, training=training)
        rule = "`source` must give `(batch, source_len, d_model)`."
        check(
            len(x.shape) == 3 and x.shape[-1] == self.d_model,
            rule,
            shape=tuple(x.shape),
            d_model=self.d_model,
        )
        mask = implicit_mask(x)
        return x, None if mask is None else ops.expand_dims(ops.cast(mask, "bool"), (1, 2))

    def encode(self, source, training=None, return_attention_scores=False, vectors=None):
        """Encodes sources.

        Args:
            source: int `(batch, source_len)`, or what another source layer reads.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.
            vectors: `(batch, source_len, width)`, to take the place of the vectors of ids; None for these.

        Returns:
            A `Memory`; then the scores, where asked for.
        """
        x, mask = self._embedded(source, training, vectors)
        results = self.encoder(
            x, padding_mask=mask, training=training, return_attention_scores=return_attention_scores
        )
        x, scores, _ = unpack(results, return_attention_scores)
        return pack(Memory(x, mask), scores)

    def decode(self, target, memory, cache=None, index=None, *, training=None, return_attention_scores=False):
        """Scores the next token after each target position: all at once, in chunks or step by step.

        Args:
            target: int `(batch, target_len)`, the tokens at slot `index` and after.
            memory: The `Memory` of every row.
            cache: What `decoder.empty_cache` or the call before gave, or None.
            index: With a cache the slot of the first token; 0 when None. Or a `Place`.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's pair of attention scores too.

        Returns:
            Logits, float32 `(batch, target_len, target_vocab_size)`; then the scores, then the new cache, where
            asked for or given.
        """
        place = index if cache is not None else Place.of(index, real=ops.not_equal(target, self.pad_id))
        results = self.decoder(
            self.target(target, index=index, training=training),
            memory=memory.states,
            memory_padding_mask=memory.mask,
            training=training,
            return_attention_scores=return_attention_scores,
            cache=cache,
            index=place,
        )
        x, scores, cache = unpack(results, return_attention_scores, cache is not None)
        return pack(self.output_embedding(x, reverse=True), scores, cache)

    def call(self, inputs, training=None, return_attention_scores=False):
        if isinstance(inputs, (list, tuple)) and len(inputs) == 2:
            inputs = {"source": inputs[0], "target": inputs[1]}
        if not isinstance(inputs, dict) or not {"source", "target"} <= inputs.keys():
            rule = "`inputs` must be a dict with `source` and `target`, or the tuple `(source, target)`."
            check(False, rule, inputs=inputs)
        source, target = inputs["source"], ops.cast(inputs["target"], "int32")
        source = ops.cast(source, "int32") if self.reads_ids else source
        if not return_attention_scores:
            return self.decode(target, self.encode(source, training), training=training)
        memory, encoder = self.encode(source, training, return_attention_scores=True)
        logits, pairs = self.decode(target, memory, training=training, return_attention_scores=True)
        decoder, cross = ([own for own in scores if own is not None] for scores in zip(*pairs, strict=True))
        return logits, {"encoder": encoder, "decoder": decoder, "cross": cross}

    def input_signature(self):
        ids = keras.KerasTensor((None, None), "int32")
        return [{"source": ids if self.reads_ids else signature_of(self.source), "target": ids}]

    def start(self, source, width=1, prefix=None):
        prompt, starts = self._prompt(source, prefix)
        memory = self.projected(source if isinstance(source, Memory) else self.encode(source, training=False))
        decode = functools.partial(self.decode, memory=memory, training=False)
        trunk = ops.shape(prompt)[1] - 1
        return *tree_step(decode, self.decoder, rows_of(source), width, trunk, starts), prompt, starts

    def projected(self, memory):
        """Returns a `Memory` whose states are projected for each layer's attention to it, once for many steps."""
        if isinstance(memory.states, tuple):
            return memory
        return memory._replace(states=self.decoder.project_memory(memory.states))

    def _prompt(self, source, prefix):
        """Returns `bos_id` and the prefix of each row, moved to the right end, and the slots where they start."""
        prompt = ops.full((rows_of(source), 1), self.bos_id, "int32")
        if prefix is None:
            return prompt, None
        prompt = ops.concatenate([prompt, prefix], axis=1)
        return left_padded(prompt, lengths_of(prefix, self.pad_id) + 1, self.pad_id)

    def score_all(self, source, target):
        batch_size, n, target_len = ops.shape(target)
        memory = self.encode(source, training=False)
        memory = type(memory)(*(part if part is None else ops.repeat(part, n, axis=0) for part in memory))
        flat = ops.reshape(target, (batch_size * n, target_len))
        shifted = ops.concatenate([ops.full((batch_size * n, 1), self.bos_id, "int32"), flat[:, :-1]], axis=1)
        logits, attention = self.decode(shifted, memory, training=False, return_attention_scores=True)
        log_probs, real = log_probs_of(flat, logits, self.pad_id)
        # Attention of the last layer but one, or of the only one.
        _, cross = attention[-2:][0]
        alignments = ops.where(ops.expand_dims(real, -1), ops.mean(cross, axis=1), 0.0)
        shape = (batch_size, n, target_len)
        log_probs = ops.reshape(log_probs, shape)
        alignments = ops.reshape(alignments, (*shape, ops.shape(memory.states)[1]))
        return Scores(ops.sum(log_probs, axis=-1), log_probs, alignments)


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(EncoderDecoder):
    """The Transformer of "Attention Is All You Need" (Vaswani et al., 2017): ids in, logits out.

    The output projection is tied to the target embedding (section 3.4). For stacks of your own layers see
    `EncoderDecoder`, whose forward pass this is.

    Args:
        source_vocab_size: Number of source ids.
        target_vocab_size: Number of target ids; None for one vocabulary and one embedding for both.
        num_layers: Number of encoder layers.
        num_decoder_layers: Number of decoder layers; `num_layers` when None.
        d_model: Width of the model.
        num_heads: Number of attention heads; must divide `d_model`, unless there is a `key_dim`.
        d_ff: Width of the feed-forward networks' inner layers.
        dropout: Share of each sublayer's output and of the embeddings dropped in training.
        share_embeddings: Whether source and target share one embedding; the vocabularies must then be one.
        positions: A layer that adds positions to embeddings; `PositionalEncoding()` when None.
        embedding_scale: Factor of the embeddings; `sqrt(d_model)` when None.
        output_bias: Whether each id has a bias in the output projection.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: The other arguments of `EncoderLayer` (`activation`, `normalize_first`, `layer_norm_epsilon`,
            `key_dim`, `norm`, `sandwich_norm`, `attention_dropout`, `activation_dropout`, `kernel_initializer`,
            `stochastic_depth`), for both stacks; and Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted
            right: it starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too: a dict of `encoder`, `decoder` and
            `cross`, lists with `(batch, num_heads, length, length)` for each layer.

    Returns:
        Logits, float32 `(batch, target_len, target_vocab_size)`; then the scores, where asked for.

    Raises:
        ValueError: If a size is not positive, an id is not in the vocabulary, `eos_id` is `pad_id`, `num_heads` does
            not divide `d_model` without a `key_dim`, embeddings are shared between vocabularies of different sizes, or
            `positions` act inside attention.

    >>> model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    >>> model({"source": np.ones((2, 5), "int32"), "target": np.ones((2, 3), "int32")}).shape
    TensorShape([2, 3, 11])
    """

    def __init__(
        self,
        source_vocab_size,
        target_vocab_size=None,
        *,
        num_layers=6,
        num_decoder_layers=None,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        share_embeddings=False,
        positions=None,
        embedding_scale=None,
        output_bias=False,
        pad_id=0,
        bos_id=2,
        eos_id=3,
        **kwargs,
    ):
        keras_arguments = pop_keras_arguments(kwargs)
        check_arguments(self, Encoder.layer_class, kwargs)
        policy = keras.dtype_policies.get(keras_arguments.get("dtype"))
        stack = {"num_heads": num_heads, "d_ff": d_ff, "dropout": dropout, **kwargs}
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        options = {"scale": d_model**0.5 if embedding_scale is None else embedding_scale, "dropout": dropout}
        source, target = embeddings_of(
            source_vocab_size,
            target_vocab_size,
            share_embeddings,
            output_bias,
            output_dim=d_model,
            positions=PositionalEncoding(dtype=policy, name="positions") if positions is None else positions,
            **options,
            dtype=policy,
        )
        super().__init__(
            source,
            Encoder(num_layers, **stack, dtype=policy, name="encoder"),
            target,
            Decoder(num_decoder_layers, **stack, dtype=policy, name="decoder"),
            pad_id=pad_id,
            bos_id=bos_id,
            eos_id=eos_id,
            **keras_arguments,
        )

    @classmethod
    def from_preset(cls, preset, source_vocab_size, target_vocab_size=None, **kwargs):
        """Makes a model of a known size, with fresh weights.

        Args:
            preset: "tiny" (4+4 layers, d_model 128, 4 heads, d_ff 256, dropout 0.3), "base" or "big" (the
                paper's, table 3).
            source_vocab_size: Number of source ids.
            target_vocab_size: Number of target ids; None for one vocabulary.
            **kwargs: Arguments of the constructor; they override the preset.

        Raises:
            ValueError: If there is no such preset.
        """
        check_choice(sorted(PRESETS), preset=preset)
        return cls(source_vocab_size, target_vocab_size, **{**PRESETS[preset], **kwargs})


def embeddings_of(source_vocab_size, target_vocab_size, shared, output_bias, **options):
    """Makes the `Embeddings` of the source and of the target, which are one where the vocabularies are.

    Args:
        source_vocab_size: Number of source ids.
        target_vocab_size: Number of target ids; None for one vocabulary and one layer for both.
        shared: Whether one layer serves both; the vocabularies must then be one.
        output_bias: Whether each target id has a bias in the output projection.
        **options: The arguments of `Embeddings` for both.
    """
    size = source_vocab_size if target_vocab_size is None else target_vocab_size
    check(
        not shared or source_vocab_size == size,
        "`share_embeddings=True` needs one vocabulary.",
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
    )
    one = shared or target_vocab_size is None
    target = Embeddings(size, output_bias=output_bias, **options, name="target")
    return target if one else Embeddings(source_vocab_size, **options, name="source"), target
