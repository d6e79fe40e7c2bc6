"""The recurrent layers that the Transformer replaced, and the attention that was added to them."""

import keras

from keras_transformer.execution import ops
from keras_transformer.layers.attention import pack
from keras_transformer.layers.base import KeepsShape
from keras_transformer.layers.dot_product import dot_product_attention
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.residual import Dropout
from keras_transformer.masks import as_token_mask


@keras.saving.register_keras_serializable("keras_transformer")
class LSTMStack(KeepsShape, keras.layers.Layer):
    """A stack of `keras.layers.LSTM`, with dropout between the layers.

    Hochreiter and Schmidhuber, 1997, "Long Short-Term Memory". The dropout is that of Zaremba et al., 2014, "Recurrent
    Neural Network Regularization", section 3.2, without the dropout of the input and of the output.

    Args:
        num_layers: Number of layers.
        units: Width of the states.
        dropout: Share of each layer's output, but the last one's, dropped in training.

    Call arguments:
        x: `(batch, length, features)`.
        state: `(batch, num_layers, 2, units)`, the state that the call before returned; zeros when None.
        mask: bool `(batch, length)`, True where a token is real: other tokens leave the state as it is. Keras's
            implicit mask of `x` when None.
        training: Whether to drop.

    Returns:
        The last layer's states `(batch, length, units)`; and the hidden state and the cell state of every layer after
        the last token, `(batch, num_layers, 2, units)`.

    Raises:
        ValueError: If a size is not positive, or `dropout` not in [0, 1).

    >>> states, last = LSTMStack(2, 4)(np.ones((1, 3, 5)))
    >>> states.shape, last.shape
    (TensorShape([1, 3, 4]), TensorShape([1, 2, 2, 4]))
    """

    def __init__(self, num_layers, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.units = units
        self.dropout = dropout
        self.supports_masking = True
        self.layers = [
            # XLA and padding masks need the layer without cuDNN; one layer for all keeps the numbers the same.
            keras.layers.LSTM(
                units,
                return_sequences=True,
                return_state=True,
                use_cudnn=False,
                dtype=self.dtype_policy,
                name=f"layer_{i}",
            )
            for i in range(num_layers)
        ]
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, x_shape, state_shape=None):
        for i, layer in enumerate(self.layers):
            layer.build((*x_shape[:-1], self.units) if i else x_shape)

    def call(self, x, state=None, mask=None, training=None):
        if state is None:
            state = self.empty_state(ops.shape(x)[0])
        states = []
        for i, layer in enumerate(self.layers):
            x = self.drop(x, training=training) if i else x
            x, after = self._layer_states(layer, x, state[:, i], mask)
            states.append(after)
        return x, ops.stack(states, axis=1)

    def _layer_states(self, layer, x, state, mask):
        """Computes one layer: its states `(batch, length, units)`, and its state after the last token
        `(batch, 2, units)`."""
        before = [state[:, 0], state[:, 1]]
        if x.shape[1] != 1:
            x, *after = layer(x, initial_state=before, mask=mask)
            return x, ops.stack(after, axis=1)
        # One token, as in decoding: no loop.
        y, after = layer.cell(x[:, 0], before)
        after = ops.stack(after, axis=1)
        return ops.expand_dims(y, 1), after if mask is None else ops.where(
            ops.expand_dims(mask, 2), after, state
        )

    def empty_state(self, batch_size):
        """Returns the state before the first token: zeros `(batch_size, num_layers, 2, units)`."""
        return ops.zeros((batch_size, self.num_layers, 2, self.units), self.compute_dtype)

    def compute_mask(self, x, mask=None):
        return mask, None

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return (*x_shape[:-1], self.units)


@keras.saving.register_keras_serializable("keras_transformer")
class LuongAttention(KeepsShape, keras.layers.Layer):
    """`tanh(W [a; s])`, where `a` is the mean of a memory weighted by `softmax(s·h)`: the dot score.

    Luong et al., 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1: `s` is a
    state of the decoder, `h` the states of the encoder, and there is no bias.

    Args:
        kernel_initializer: Initializer of the matrix.

    Call arguments:
        x: `(batch, target_len, d_model)`, the decoder's states.
        memory: `(batch, source_len, d_model)`, the encoder's states.
        memory_mask: bool `(batch, source_len)`, or `(batch, 1, 1, source_len)`; None for all.
        return_attention_scores: Whether to return the scores too.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` also the scores
        `(batch, 1, target_len, source_len)`: there is one head.

    >>> LuongAttention()(np.ones((1, 2, 4)), np.ones((1, 3, 4))).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape, memory_shape=None):
        self.projection = Projection(
            "...x,xy->...y",
            x_shape[-1],
            activation="tanh",
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="projection",
        )
        self.projection.build((*x_shape[:-1], 2 * x_shape[-1]))

    def call(self, x, memory, memory_mask=None, return_attention_scores=False):
        memory_mask = as_token_mask(memory_mask, "memory_mask")
        memory = ops.expand_dims(memory, 1)  # one head
        context, scores = dot_product_attention(
            ops.expand_dims(x, 1),
            memory,
            memory,
            None if memory_mask is None else ops.expand_dims(memory_mask, (1, 2)),
            return_attention_scores=return_attention_scores,
            scale=1.0,
        )
        output = self.projection(ops.concatenate([context[:, 0], x], axis=-1))
        return pack(output, scores if return_attention_scores else None)
