"""Packs texts and pairs of texts as an `EncoderModel` reads them: `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`."""

import tensorflow as tf

from keras_transformer.checks import check_count
from keras_transformer.text.base import as_ragged


def pack(tokenizer, first, second=None, max_length=None):
    """Tokenises texts or pairs of texts and packs them, as TensorFlow ops.

    Args:
        tokenizer: A tokenizer with `tokenize`, `pad_id`, `bos_id` (used as `[CLS]`) and `eos_id` (used as `[SEP]`).
        first: Strings `(batch,)`, or a single string.
        second: The second text of each pair, of the same shape; None for single texts.
        max_length: Largest number of ids in a row, special ids included; None for no limit. A pair that is too long
            loses ids at the end of its longer text until both are equally long, and then at the end of both.

    Returns:
        A dict: `token_ids`, int32 `(batch, length)`, and `segment_ids` of the same shape: 1 for the second text and
        the `[SEP]` after it, else 0. For a single string both are `(length,)`.

    Raises:
        ValueError: If `max_length` has no room for the special ids.

    >>> from keras_transformer.text import ByteTokenizer
    >>> packed = pack(ByteTokenizer(), "ab", "c")
    >>> packed["token_ids"].numpy().tolist()
    [2, 101, 102, 3, 103, 3]
    >>> packed["segment_ids"].numpy().tolist()
    [0, 0, 0, 0, 1, 1]
    """
    second = None if second is None else tokenizer.tokenize(second)
    ids = {"pad_id": tokenizer.pad_id, "cls_id": tokenizer.bos_id, "sep_id": tokenizer.eos_id}
    return pack_ids(tokenizer.tokenize(first), second, max_length, **ids)


def pack_ids(first, second=None, max_length=None, *, pad_id=0, cls_id=2, sep_id=3, separators=1):
    """Packs the ids of texts or pairs of texts (Devlin et al., 2019, "BERT", section 3).

    Args:
        first: int `(batch, length)`, ragged or padded, or `(length,)` for a single text; without special ids.
        second: The second text of each pair, in the same form; None for single texts.
        max_length: Largest number of ids in a row, special ids included; None for no limit. A pair that is too long
            loses ids at the end of its longer text until both are equally long, and then at the end of both.
        pad_id: The id after the end of shorter rows.
        cls_id: The id at the start of each row; None for none.
        sep_id: The id at the end of each text.
        separators: How many `sep_id` stand between the texts of a pair; 2 in RoBERTa.

    Returns:
        A dict: `token_ids`, int32 `(batch, length)`, and `segment_ids` of the same shape: 1 for the second text and
        the `[SEP]` after it, else 0. For a single text both are `(length,)`.

    Raises:
        ValueError: If `max_length` has no room for the special ids.

    >>> pack_ids([[11, 13], [17]], [[19], [23, 29]], max_length=6)["token_ids"].numpy().tolist()
    [[2, 11, 13, 3, 19, 3], [2, 17, 3, 23, 29, 3]]
    """
    texts, single = [], False
    for ids in (first,) if second is None else (first, second):
        if not isinstance(ids, tf.RaggedTensor):
            ids, single = as_ragged(ids, (pad_id, cls_id, sep_id))
        texts.append(ids)
    tf.debugging.assert_equal(
        texts[0].nrows(), texts[-1].nrows(), "`first` and `second` must have the same number of rows."
    )
    lengths = [tf.cast(text.row_lengths(), tf.int32) for text in texts]
    special = (1 if cls_id is None else 2) + separators * (len(texts) - 1)
    if max_length is not None:
        check_count(special, max_length=max_length)
        lengths = _shortened(lengths, max_length - special)
    # Each text is gathered into its columns of a dense grid. To concatenate ragged tensors instead would take seconds
    # to trace and to load.
    length = tf.reduce_max(tf.concat([sum(lengths), [0]], axis=0)) + special
    column = tf.range(length)[None]
    token_ids = tf.where(column == 0, pad_id if cls_id is None else cls_id, pad_id)
    segment_ids = tf.zeros_like(column)
    # The column of the `[CLS]` or `[SEP]` before the text; without a `[CLS]` that is the one before the first.
    end = tf.zeros_like(lengths[0])[:, None] - (1 if cls_id is None else 0)
    for segment, (text, count) in enumerate(zip(texts, lengths, strict=True)):
        start = end + (separators if segment else 1)
        before, end = end, start + count[:, None]
        values = tf.concat([tf.cast(text.flat_values, tf.int32), [pad_id]], axis=0)
        index = tf.cast(text.row_starts(), tf.int32)[:, None] + column - start
        gathered = tf.gather(values, tf.clip_by_value(index, 0, tf.size(values) - 1))
        token_ids = tf.where((column >= start) & (column < end), gathered, token_ids)
        is_separator = (column == end) | ((column > before) & (column < start))
        token_ids = tf.where(is_separator, sep_id, token_ids)
        segment_ids = tf.where((column >= start) & (column <= end), segment, segment_ids)
    packed = {"token_ids": token_ids, "segment_ids": segment_ids}
    return {name: ids[0] for name, ids in packed.items()} if single else packed


def _shortened(lengths, room):
    """Returns how many ids of each text stay: at most `room` in a row, so that the longer text loses first."""
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    shorter = tf.minimum(tf.minimum(*lengths), room // 2)
    longer = tf.minimum(tf.maximum(*lengths), room - shorter)
    first_is_shorter = lengths[0] <= lengths[1]
    return [tf.where(first_is_shorter, shorter, longer), tf.where(first_is_shorter, longer, shorter)]
