"""Token embedding and the output projection tied to it."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.layers.product import product
from keras_transformer.layers.shapes import KeepsShape


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(KeepsShape, keras.layers.Layer):
    """Looks tokens up and scales them by `sqrt(d_model)`; with `reverse=True` it is the tied output projection.

    One matrix serves both ends ("Attention Is All You Need", section 3.4; Press and Wolf, 2017).

    Args:
        vocab_size: Number of ids.
        d_model: Width of an embedding.
        pad_id: The id that Keras's implicit mask marks as padding; None for no mask.
        scale: What the vectors are multiplied by; `sqrt(d_model)` when None.
        output_scale: What a decoder's output is multiplied by before its product with the matrix.
        output_bias: Whether each id has a bias in the output projection.
        embeddings_initializer: Initializer of the matrix; normal, of deviation `1 / sqrt(d_model)`, when None.

    Call arguments:
        token_ids: int `(batch, length)`; with `reverse`, a decoder's output `(batch, length, d_model)`.
        reverse: Whether to score every id for each position instead.

    Returns:
        `(batch, length, d_model)`; with `reverse` logits, float32 `(batch, length, vocab_size)`.

    Raises:
        ValueError: If `vocab_size` or `d_model` is not positive.
    """

    def __init__(
        self,
        vocab_size,
        d_model,
        pad_id=None,
        *,
        scale=None,
        output_scale=1.0,
        output_bias=False,
        embeddings_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(vocab_size=vocab_size, d_model=d_model)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model) if scale is None else scale
        self.output_scale = output_scale
        self.output_bias = output_bias
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True
        self.autocast = False  # ids keep their dtype

    def build(self, token_ids_shape=None):
        initializer = self.embeddings_initializer
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocab_size, self.d_model),
            initializer=initializer,
        )
        if self.output_bias:
            self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")
        self.built = True

    def call(self, token_ids, reverse=False):
        if reverse:
            return self.logits(token_ids)
        vectors = ops.take(self.embeddings, ops.cast(token_ids, "int32"), axis=0)
        return ops.cast(vectors, self.compute_dtype) * self.scale

    def output_kernel(self):
        """The output projection `(d_model, vocab_size)`; decoding asks for it once, before its loop."""
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def logits(self, x, kernel=None):
        """Scores every id for each position, in float32: what `reverse=True` calls.

        Args:
            x: `(batch, length, d_model)`.
            kernel: What `output_kernel` gave, or None to compute it here.

        Returns:
            float32 `(batch, length, vocab_size)`.
        """
        kernel = self.output_kernel() if kernel is None else kernel
        x = x if self.output_scale == 1.0 else x * self.output_scale
        logits = ops.cast(product(x, kernel, self.compute_dtype), "float32")
        return logits + ops.cast(self.bias, "float32") if self.output_bias else logits

    def compute_mask(self, token_ids, mask=None):
        if self.pad_id is None or len(token_ids.shape) == 3:  # reversed: no ids
            return mask
        return ops.not_equal(token_ids, self.pad_id)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.d_model)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "pad_id": self.pad_id,
            "scale": self.scale,
            "output_scale": self.output_scale,
            "output_bias": self.output_bias,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
