"""Segments: what tells the texts of a pair apart."""

import keras
from keras import ops

from keras_transformer.checks import check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class SegmentEmbedding(keras.layers.Layer):
    """Adds a learned vector for each segment to `x` (Devlin et al., 2019, "BERT", section 3).

    Args:
        num_segments: Number of segments; a pair has two.

    Call arguments:
        x: `(batch, length, d_model)`.
        segment_ids: int `(batch, length)`, the segment of each token; all are of segment 0 when None.

    Returns:
        `(batch, length, d_model)`, `x` plus its segments. A segment after the last takes the last one's vector.

    Raises:
        ValueError: If `num_segments` is not positive.
    """

    def __init__(self, num_segments=2, **kwargs):
        super().__init__(**kwargs)
        check_positive(num_segments=num_segments)
        self.num_segments = num_segments
        self.autocast = False  # the sum is rounded once
        self.supports_masking = True

    def build(self, x_shape, segment_ids_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_segments, x_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            autocast=False,
        )
        self.built = True

    def call(self, x, segment_ids=None):
        if segment_ids is None:
            vectors = self.embeddings[0]
        else:
            segment_ids = ops.clip(ops.cast(segment_ids, "int32"), 0, self.num_segments - 1)
            vectors = ops.take(self.embeddings, segment_ids, axis=0)
        return ops.cast(ops.cast(x, "float32") + vectors, self.compute_dtype)

    def compute_output_shape(self, x_shape, segment_ids_shape=None):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "num_segments": self.num_segments}
