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
    special = (pad_id, cls_id, sep_id)
    first, single = as_ragged(first, special)
    texts = [first] if second is None else [first, as_ragged(second, special)[0]]
    if max_length is not None:
        check_count(1 + len(texts), max_length=max_length)
        texts = _cut(texts, max_length - 1 - len(texts))
    mark = tf.ones((first.nrows(), 1), tf.int32)
    parts = [mark * cls_id]
    segments = [mark * 0]
    for segment, text in enumerate(texts):
        parts += [text, mark * sep_id]
        segments += [tf.ones_like(text) * segment, mark * segment]
    packed = {
        "token_ids": tf.concat(parts, axis=1).to_tensor(pad_id),
        "segment_ids": tf.concat(segments, axis=1).to_tensor(0),
    }
    return {name: ids[0] for name, ids in packed.items()} if single else packed


def _cut(texts, room):
    """Texts or pairs, ragged, of `room` ids in all at most."""
    lengths = [tf.cast(text.row_lengths(), tf.int32) for text in texts]
    if len(texts) == 1:
        kept = [tf.minimum(lengths[0], room)]
    else:
        shorter = tf.minimum(tf.minimum(*lengths), room // 2)
        longer = tf.minimum(tf.maximum(*lengths), room - shorter)
        ordered = lengths[0] <= lengths[1]
        kept = [tf.where(ordered, shorter, longer), tf.where(ordered, longer, shorter)]
    return [
        tf.ragged.boolean_mask(text, tf.ragged.range(length) < tf.expand_dims(count, 1))
        for text, length, count in zip(texts, lengths, kept, strict=True)
    ]
