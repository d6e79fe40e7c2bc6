"""What the Transformer replaced: recurrent layers, and the attention that was added to them."""

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.dot_product import dot_product_attention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.product import product
from keras_transformer.layers.shapes import KeepsShape, packed
from keras_transformer.masks import broadcastable


@keras.saving.register_keras_serializable("keras_transformer")
class LSTMStack(KeepsShape, keras.layers.Layer):
    """Layers of long short-term memory, each over the states of the one before, with dropout between them.

    Hochreiter and Schmidhuber, 1997; the dropout is that of Zaremba et al., 2014, "Recurrent Neural Network
    Regularization", section 3.2, but for the input's and the output's. The layers are Keras's.

    Args:
        num_layers: Number of layers.
        units: Width of the states.
        dropout: Share dropped, in training, of what a layer hands to the next.

    Call arguments:
        x: `(batch, length, features)`.
        state: What the call before gave; zeros when None.
        mask: bool `(batch, length)`, True where a token is real: others leave the state as it is. Keras's implicit mask
            of `x` when None.
        training: Whether to drop out.

    Returns:
        The last layer's states `(batch, length, units)`; and after the last token the hidden state and the cell's of
        every layer, `(batch, num_layers, 2, units)`.

    Raises:
        ValueError: If a size is not positive, or `dropout` not in [0, 1).
    """

    def __init__(self, num_layers, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        check_positive(num_layers=num_layers, units=units)
        check_share(dropout=dropout)
        self.num_layers = num_layers
        self.units = units
        self.dropout = dropout
        self.supports_masking = True
        self.layers = [
            # cuDNN's layer is another one for XLA, and for masks
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
        self.built = True

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
        """A layer's states `(batch, length, units)`, and those after the last token `(batch, 2, units)`."""
        before = [state[:, 0], state[:, 1]]
        if x.shape[1] != 1:
            x, *after = layer(x, initial_state=before, mask=mask)
            return x, ops.stack(after, axis=1)
        y, after = layer.cell(x[:, 0], before)  # one token, as in decoding: no loop
        after = ops.stack(after, axis=1)
        return y[:, None], after if mask is None else ops.where(mask[:, :, None], after, state)

    def empty_state(self, batch_size):
        """The state before the first token, zeros."""
        return ops.zeros((batch_size, self.num_layers, 2, self.units), self.compute_dtype)

    def compute_mask(self, x, mask=None):
        return mask, None

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return (*x_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "units": self.units,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class LuongAttention(KeepsShape, keras.layers.Layer):
    """`tanh(W [a; s])`, where `a` is the mean of a memory weighted by `softmax(s . h)`: the dot score.

    Luong et al., 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1: a decoder's
    state is s, an encoder's is h, and there is no bias.

    Args:
        kernel_initializer: Initializer of the matrix.

    Call arguments:
        x: `(batch, target_len, d_model)`, the decoder's states.
        memory: `(batch, source_len, d_model)`, the encoder's.
        memory_mask: bool `(batch, source_len)`, or of rank 3 or 4 as attention masks are; None for all.
        return_attention_scores: Whether to return the weights too.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` also the weights
        `(batch, 1, target_len, source_len)`: there is one head.
    """

    def __init__(self, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape, memory_shape=None):
        d_model = x_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(2 * d_model, d_model),
            initializer=self.kernel_initializer.clone(),
        )
        self.built = True

    def call(self, x, memory, memory_mask=None, return_attention_scores=False):
        context, scores = dot_product_attention(
            x[:, None],
            memory[:, None],
            memory[:, None],
            broadcastable(memory_mask),
            weights=return_attention_scores,
            scale=1.0,
        )
        both = ops.concatenate([context[:, 0], x], axis=-1)
        return packed(ops.tanh(product(both, self.kernel, self.compute_dtype)), scores=scores)

    def get_config(self):
        return {
            **super().get_config(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
