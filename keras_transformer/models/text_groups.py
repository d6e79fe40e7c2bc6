"""Groups of texts whose vectors are compared, to train an embedder."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution import ops
from keras_transformer.models.base import BaseModel
from keras_transformer.models.encoder_model import EncoderModel


@keras.saving.register_keras_serializable("keras_transformer")
class TextGroups(BaseModel):
    """The vectors of groups of texts, such as a question and its answer: what the losses of embedders read.

    Train it with `InBatchNegatives` or another loss of `keras_transformer.losses`. The `EncoderModel` is used as it is,
    so `Embedder(encoder, tokenizer, pooling=pooling)` has the trained weights.

    Args:
        encoder: An `EncoderModel`; its head is not used.
        pooling: One of the poolings of `EncoderModel.embed`.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `token_ids`, int `(batch, parts, length)`, padded on the right, and perhaps `segment_ids`.
        training: Whether to drop.

    Returns:
        float32 `(batch, parts, vector_width(pooling))`.

    Raises:
        ValueError: If `encoder` is not an `EncoderModel`, or does not have this pooling.

    >>> from keras_transformer.layers import Embeddings, Encoder, LearnedPositions
    >>> encoder = EncoderModel(Embeddings(11, 4, LearnedPositions(5)), Encoder(1, 2, 8))
    >>> TextGroups(encoder)({"token_ids": np.array([[[2, 7, 3], [2, 5, 3]]])}).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, encoder, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        # Token ids keep their dtype.
        self.autocast = False
        check(isinstance(encoder, EncoderModel), "`encoder` must be an `EncoderModel`.", encoder=encoder)
        encoder.vector_width(pooling)
        self.encoder, self.pooling = encoder, pooling
        self.built = True

    def call(self, inputs, training=None):
        axes = ops.shape(inputs["token_ids"])[:2]
        flat = {name: ops.reshape(x, (-1, ops.shape(x)[-1])) for name, x in inputs.items()}
        vectors = self.encoder.embed(flat, self.pooling, training=training)
        return ops.reshape(vectors, (*axes, vectors.shape[-1]))

    def input_signature(self):
        (names,) = self.encoder.input_signature()
        return [{name: keras.KerasTensor((None, None, None), "int32") for name in names}]
