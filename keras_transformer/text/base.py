"""What the tokenizers share."""

import tensorflow as tf

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3


def valid_utf8(strings):
    """The strings with each invalid byte sequence replaced by U+FFFD, as a TensorFlow op."""
    return tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")


def as_ragged(ids):
    """Ids as int32 ragged rows without padding, bos and eos.

    Args:
        ids: int, ragged or dense, `(batch, length)` or `(length,)`; anything that becomes such a tensor.

    Returns:
        int32 ragged `(batch, None)` and whether the input was a single row.
    """
    if not isinstance(ids, (tf.Tensor, tf.RaggedTensor)):
        ids = tf.ragged.constant(ids, tf.int32) if _is_nested(ids) else tf.constant(ids, tf.int32)
    single = isinstance(ids, tf.Tensor) and ids.shape.rank == 1
    if single:
        ids = ids[None]
    if isinstance(ids, tf.Tensor):
        ids = tf.RaggedTensor.from_tensor(ids)
    ids = tf.cast(ids, tf.int32)
    special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)
    return tf.ragged.boolean_mask(ids, ~special), single


def _is_nested(ids):
    return isinstance(ids, (list, tuple)) and (not ids or isinstance(ids[0], (list, tuple)))
