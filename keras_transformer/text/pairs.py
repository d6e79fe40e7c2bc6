"""Texts and pairs of texts as an `EncoderModel` reads them: `[CLS] a [SEP]`, `[CLS] a [SEP] b [SEP]`."""

import tensorflow as tf

from keras_transformer.checks import check_count
from keras_transformer.text.base import as_ragged


def pack(tokenizer, first, second=None, max_length=None):
    """Tokenises texts or pairs and packs them, as TensorFlow ops.

    Args:
        tokenizer: Has `tokenize`, `pad_id`, `bos_id`, which stands for `[CLS]`, and `eos_id`, for `[SEP]`.
        first: Strings `(batch,)`, or a single string.
        second: Likewise, the second text of each pair; None for single texts.
        max_length: As in `pack_ids`.

    Returns:
        As `pack_ids`.
    """
    second = None if second is None else tokenizer.tokenize(second)
    ids = {"pad_id": tokenizer.pad_id, "cls_id": tokenizer.bos_id, "sep_id": tokenizer.eos_id}
    return pack_ids(tokenizer.tokenize(first), second, max_length, **ids)


def pack_ids(first, second=None, max_length=None, *, pad_id=0, cls_id=2, sep_id=3):
    """Packs ids of texts or pairs (Devlin et al., 2019, "BERT", section 3).

    Args:
        first: int `(batch, length)`, ragged or padded, or `(length,)` of a single text; without special ids.
        second: Likewise, the second text of each pair; None for single texts.
        max_length: Most ids of a row. Where a pair has more, the longer text loses its end until both are as long, then
            both lose theirs; None for no limit.
        pad_id: The id that fills rows up.
        cls_id: The id that starts a row.
        sep_id: The id that ends each text.

    Returns:
        A dict: `token_ids`, int32 `(batch, length)`, and `segment_ids`, of the same shape, 1 for the second text and
        the `[SEP]` after it, else 0; `(length,)` both where the text was a single one.

    Raises:
        ValueError: If `max_length` has no room for the special ids.
    """
    texts, single = [], False
    for given in (first,) if second is None else (first, second):
        if not isinstance(given, tf.RaggedTensor):
            given, single = as_ragged(given, (pad_id, cls_id, sep_id))
        texts.append(given)
    tf.debugging.assert_equal(
        texts[0].nrows(), texts[-1].nrows(), "`first` and `second` must have as many rows."
    )
    lengths = [tf.cast(text.row_lengths(), tf.int32) for text in texts]
    if max_length is not None:
        check_count(1 + len(texts), max_length=max_length)
        lengths = _cut(lengths, max_length - 1 - len(texts))
    # Places in a grid: as ragged tensors put together, it would take seconds to trace and to load.
    length = tf.reduce_max(tf.concat([sum(lengths), [0]], axis=0)) + 1 + len(texts)
    place = tf.range(length)[None]
    token_ids = tf.where(place == 0, cls_id, pad_id)
    segment_ids = tf.zeros_like(place)
    end = tf.zeros_like(lengths[0])[:, None]  # where the text before ended
    for segment, (text, count) in enumerate(zip(texts, lengths, strict=True)):
        start, end = end + 1, end + 1 + count[:, None]
        values = tf.concat([tf.cast(text.flat_values, tf.int32), [pad_id]], axis=0)
        index = tf.cast(text.row_starts(), tf.int32)[:, None] + place - start
        found = tf.gather(values, tf.clip_by_value(index, 0, tf.size(values) - 1))
        token_ids = tf.where((place >= start) & (place < end), found, token_ids)
        token_ids = tf.where(place == end, sep_id, token_ids)
        segment_ids = tf.where((place >= start) & (place <= end), segment, segment_ids)
    packed = {"token_ids": token_ids, "segment_ids": segment_ids}
    return {name: ids[0] for name, ids in packed.items()} if single else packed


def _cut(lengths, room):
    """How much of each text, or of the two of each pair, is kept in `room` ids."""
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    shorter = tf.minimum(tf.minimum(*lengths), room // 2)
    longer = tf.minimum(tf.maximum(*lengths), room - shorter)
    ordered = lengths[0] <= lengths[1]
    return [tf.where(ordered, shorter, longer), tf.where(ordered, longer, shorter)]
