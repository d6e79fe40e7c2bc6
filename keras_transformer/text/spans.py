"""Where the pieces of texts stand in them, in characters, as TensorFlow ops."""

import tensorflow as tf

_BLANK = r"[\s\p{Z}\x{85}]+"


def characters_of(texts):
    """Splits texts `(batch,)` of valid UTF-8 into characters, string ragged `(batch, None)`."""
    return tf.strings.unicode_split(texts, "UTF-8")


def spans_of(characters, sizes, starts, ends):
    """Finds the characters of pieces, without the blanks at their edges.

    Args:
        characters: string ragged `(batch, None)`, the characters of each text.
        sizes: int32 ragged `(batch, None)`: the number of bytes that each character has in the normal form of its text,
            where it stands in the order of the text.
        starts: int32 ragged `(batch, None)`: where each piece starts in that normal form, in bytes.
        ends: int32 ragged, of the same shape: where each piece ends.

    Returns:
        `starts` and `ends`, int32 ragged `(batch, None)`, in characters; and bool ragged: whether the piece is the
        first of a word that stands between blanks. A blank that is a piece of its own begins the word after it.
    """
    # Rows are put one after the other, with room between them, so that one search finds all.
    totals = tf.reduce_sum(sizes, axis=1)
    room = tf.cumsum(totals + 1, exclusive=True)
    rows, first = sizes.value_rowids(), tf.cast(characters.row_starts(), tf.int32)
    before = tf.cumsum(sizes.flat_values, exclusive=True) + tf.cast(rows, tf.int32)
    after = before + sizes.flat_values
    is_text = ~tf.strings.regex_full_match(characters.flat_values, _BLANK)
    solid = tf.cast(tf.where(is_text)[:, 0], tf.int32)
    piece_rows = starts.value_rowids()
    room, first = tf.gather(room, piece_rows), tf.gather(first, piece_rows)
    own = tf.searchsorted(after, starts.flat_values + room, side="right")
    end = tf.searchsorted(before, ends.flat_values + room, side="left")
    # The first character that is no blank, and the last one.
    begin = tf.gather(tf.concat([solid, [tf.int32.max]], 0), tf.searchsorted(solid, own, side="left"))
    end = tf.gather(tf.concat([[0], solid + 1], 0), tf.searchsorted(solid, end, side="left"))
    end = tf.maximum(end, first)
    begin = tf.minimum(tf.maximum(begin, first), end)

    def at_blank(places):
        return tf.gather(tf.concat([[True], ~is_text, [True]], 0), places + 1)

    def shifted(values):
        return tf.concat([values[:1], values[:-1]], 0)

    # Bytes of one character may be several pieces.
    whole = starts.flat_values + room <= tf.gather(tf.concat([before, [tf.int32.max]], 0), own)
    continues = (shifted(begin) == shifted(end)) & (shifted(piece_rows) == piece_rows)
    is_first = tf.range(tf.size(own)) == tf.gather(tf.cast(starts.row_starts(), tf.int32), piece_rows)
    begins = is_first | at_blank(own) | (whole & at_blank(own - 1) & ~continues)
    return tuple(starts.with_flat_values(each) for each in (begin - first, end - first, begins))
