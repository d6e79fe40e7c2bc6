"""The recurrent encoder-decoder with attention that the Transformer replaced."""

import math
from types import MappingProxyType
from typing import Any, NamedTuple

import keras

from keras_transformer.execution import ops
from keras_transformer.layers import Dropout, LSTMStack, LuongAttention
from keras_transformer.layers.attention import pack
from keras_transformer.models.transformer import EncoderDecoder, embeddings_of


class RecurrentMemory(NamedTuple):
    """An encoded source.

    states: `(batch, source_len, d_model)`, the last layer's states.
    mask: bool `(batch, 1, 1, source_len)`, True where a token is real.
    last: `(batch, num_layers, 2, d_model)`, every layer's state after the last token, with which the decoder begins.
    """

    states: Any
    mask: Any
    last: Any


@keras.saving.register_keras_serializable("keras_transformer")
class RecurrentSeq2Seq(EncoderDecoder):
    """An LSTM that reads and an LSTM that writes and attends to what was read: ids in, logits out.

    Luong et al., 2015, "Effective Approaches to Attention-based Neural Machine Translation", sections 2 and 3.1, with
    global attention and the dot score, without input feeding; both stacks run forwards. As in `Transformer` the output
    projection is tied to the target embedding (Press and Wolf, 2017).

    Args:
        source_vocab_size: Number of source ids.
        target_vocab_size: Number of target ids; None for one vocabulary and one embedding for both.
        num_layers: Number of layers of each stack.
        d_model: Width of embeddings and states.
        dropout: Share dropped in training, of the embeddings, between the layers, and of the attention's output.
        output_bias: Whether each id has a bias in the output projection.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted
            right: it starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too: a dict of `cross`, a list with one tensor
            `(batch, 1, target_len, source_len)`, and of `encoder` and `decoder`, empty lists, as these have none.

    Returns:
        Logits, float32 `(batch, target_len, target_vocab_size)`; then the scores, where asked for.

    Raises:
        ValueError: If a size is not positive, or an id is not in the vocabulary.

    >>> model = RecurrentSeq2Seq(11, num_layers=1, d_model=4)
    >>> model({"source": np.ones((2, 5), "int32"), "target": np.ones((2, 3), "int32")}).shape
    TensorShape([2, 3, 11])
    """

    encoder_class = decoder_class = LSTMStack
    refused_formats = MappingProxyType(
        {
            "litert": '`format="litert"` has no operations for the loop of an LSTM. Export with `format="onnx"`.'
        }
    )

    def __init__(
        self,
        source_vocab_size,
        target_vocab_size=None,
        *,
        num_layers=2,
        d_model=512,
        dropout=0.2,
        output_bias=False,
        pad_id=0,
        bos_id=2,
        eos_id=3,
        **kwargs,
    ):
        policy = keras.dtype_policies.get(kwargs.get("dtype"))
        self.num_layers = num_layers
        self.attention = LuongAttention(dtype=policy, name="attention")
        self.drop = Dropout(dropout, dtype=policy, name="drop")
        options = {"output_dim": d_model, "scale": d_model**0.5, "dropout": dropout, "dtype": policy}
        source, target = embeddings_of(source_vocab_size, target_vocab_size, False, output_bias, **options)
        super().__init__(
            source,
            LSTMStack(num_layers, d_model, dropout, dtype=policy, name="encoder"),
            target,
            LSTMStack(num_layers, d_model, dropout, dtype=policy, name="decoder"),
            pad_id=pad_id,
            bos_id=bos_id,
            eos_id=eos_id,
            **kwargs,
        )
        self.attention.build((None, None, d_model))

    def encode(self, source, training=None, return_attention_scores=False, vectors=None):
        """Encodes sources.

        Args:
            source: int `(batch, source_len)`.
            training: Whether to drop.
            return_attention_scores: Whether to return an empty list too: there are no scores.
            vectors: `(batch, source_len, d_model)`, to take the place of the source's embeddings; None for these.

        Returns:
            A `RecurrentMemory`; then the empty list, where asked for.
        """
        x, mask = self._embedded(source, training, vectors)
        states, last = self.encoder(x, mask=mask[:, 0, 0], training=training)
        return pack(RecurrentMemory(states, mask, last), [] if return_attention_scores else None)

    def decode(
        self, target, memory, cache=None, *, target_mask=None, training=None, return_attention_scores=False
    ):
        """Scores the next token after each target position: all at once, in chunks or step by step.

        Args:
            target: int `(batch, target_len)`, or `(batch, width, target_len)`, the tokens of several hypotheses for
                each source.
            memory: The `RecurrentMemory` of every source.
            cache: The state that the call before gave, for targets of the same rank; None at the start of a target,
                which starts from `memory.last`.
            target_mask: bool `(batch, target_len)`, False where a token leaves the state as it is; None for none.
            training: Whether to drop.
            return_attention_scores: Whether to return the attention scores too.

        Returns:
            Logits, float32 `(*target.shape, target_vocab_size)`; then the scores, a list with one pair, None and
            `(batch, 1, target positions, source_len)`, where asked for; then the new cache, where one was given.
        """
        state = memory.last if cache is None else cache
        shape, rest = ops.shape(target), ops.shape(memory.last)[1:]
        x = self.target(ops.reshape(target, (-1, shape[-1])), training=training)
        x, state = self.decoder(x, ops.reshape(state, (-1, *rest)), mask=target_mask, training=training)
        # Hypotheses of one source attend to one memory.
        x = ops.reshape(x, (shape[0], math.prod(shape[1:]), self.d_model))
        results = self.attention(
            x, memory.states, memory.mask, return_attention_scores=return_attention_scores
        )
        x, scores = results if return_attention_scores else (results, None)
        x = self.drop(x, training=training)
        logits = self.output_embedding(x, reverse=True)
        return pack(
            ops.reshape(logits, (*shape, self.target_vocab_size)),
            [(None, scores)] if return_attention_scores else None,
            None if cache is None else ops.reshape(state, (*shape[:-1], *rest)),
        )

    def start(self, source, width=1, prefix=None):
        prompt, starts = self._prompt(source, prefix)
        memory = self.encode(source, training=False)

        def step(tokens, cache, index):
            branches, length = ops.shape(tokens)[1:]
            mask = None
            if starts is not None and branches == 1:
                # This is a prompt. What comes after it is not padded.
                mask = ops.arange(length, dtype="int32") + index >= starts[:, None]
            logits, cache = self.decode(tokens, memory, cache[:, :branches], target_mask=mask, training=False)
            return logits, cache if branches == width else ops.repeat(cache, width, axis=1)

        return step, ops.repeat(memory.last[:, None], width, axis=1), prompt, starts
