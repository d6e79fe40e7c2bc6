"""What the tokenizers share."""

import functools

import tensorflow as tf

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3


def valid_utf8(strings):
    """The strings with each invalid byte sequence replaced by U+FFFD, as a TensorFlow op."""
    return tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")


def as_ragged(ids, special=(PAD_ID, BOS_ID, EOS_ID), unk_id=UNK_ID):
    """Ids as int32 ragged rows without the special ones.

    Args:
        ids: int, ragged or dense, `(batch, length)` or `(length,)`; anything that becomes such a tensor.
        special: The ids to leave out: padding, what starts and ends a text; None for one that there is not.
        unk_id: What stands for an id that is no int32.

    Returns:
        int32 ragged `(batch, None)` and whether the input was a single row.
    """
    if isinstance(ids, (list, tuple)):
        rows = [row.tolist() if hasattr(row, "tolist") else row for row in ids]
        single = bool(rows) and not isinstance(rows[0], (list, tuple))
        ids = tf.constant(rows, tf.int64) if single else tf.ragged.constant(rows, tf.int64, ragged_rank=1)
    ids = ids if isinstance(ids, tf.RaggedTensor) else tf.convert_to_tensor(ids)
    single = isinstance(ids, tf.Tensor) and ids.shape.rank == 1
    if single:
        ids = ids[None]
    if isinstance(ids, tf.Tensor):
        ids = tf.RaggedTensor.from_tensor(ids)
    if ids.dtype == tf.int64:  # a cast alone would wrap an id out of range into another
        inside = (ids >= 0) & (ids <= tf.int32.max)
        ids = tf.where(inside, ids, tf.ones_like(ids) * unk_id)
    ids = tf.cast(ids, tf.int32)
    equal = [tf.equal(ids, token_id) for token_id in special if token_id is not None]
    left_out = functools.reduce(tf.logical_or, equal, tf.zeros_like(ids, tf.bool))
    return tf.ragged.boolean_mask(ids, ~left_out), single
