"""Joins the labels of tokens to entities, such as names of several words, as TensorFlow ops."""

import tensorflow as tf

from keras_transformer.entity_labels import BEGINS, ENDS, OUTSIDE, parts_of_label

AGGREGATIONS = ("simple", "first", "average", "max")


def entities_of(probabilities, rows, starts, ends, begins, labels, aggregation):
    """Finds the entities among labelled tokens, as the pipeline of transformers does.

    A label may begin with "B-", for the first token of an entity, or with "I-"; and, which that pipeline does not read,
    with "E-" or "L-" for its last token, and with "S-" or "U-" for its only one. Tokens with the same label after these
    are an entity, up to one that begins another.

    Args:
        probabilities: float32 `(tokens, labels)`, of all texts one after the other.
        rows: int `(tokens,)`, the number of the text of each token.
        starts: int32 `(tokens,)`, the first character of each token.
        ends: int32 `(tokens,)`, the one after its last character.
        begins: bool `(tokens,)`, whether a token begins a word.
        labels: List of str, one for each column of the probabilities.
        aggregation: How the tokens of a word give one label. "simple": each has its own. "first": that of the first
            token; "average": that of the mean probabilities; "max": that of the token that is surest.

    Returns:
        Tensors `(entities,)`: the number of the text; the label without its letter, string; the mean of the
        probabilities of its words (with "simple", of its tokens), float32; the first character and the one after the
        last, int32.
    """
    # A token of blanks alone has no character.
    is_empty = starts == ends
    starts, ends = tf.where(is_empty, tf.int32.max, starts), tf.where(is_empty, 0, ends)
    if aggregation != "simple":
        word = tf.cumsum(tf.cast(begins | _changes(rows), tf.int32)) - 1
        index = tf.range(tf.size(word))
        if aggregation == "average":
            probabilities = tf.math.segment_mean(probabilities, word)
        else:
            if aggregation == "max":
                surest = tf.reduce_max(probabilities, axis=1)
                is_surest = surest == tf.gather(tf.math.segment_max(surest, word), word)
                index = tf.where(is_surest, index, tf.int32.max)
            probabilities = tf.gather(probabilities, tf.math.segment_min(index, word))
        rows, starts, ends = _joined(word, rows, starts, ends)
    best = tf.argmax(probabilities, axis=1)
    parts = [parts_of_label(label) for label in labels]
    tags = tf.gather([kind or OUTSIDE for _, kind in parts], best)
    is_first = tf.gather([letter in BEGINS for letter, _ in parts], best)
    is_last = tf.gather([letter in ENDS for letter, _ in parts], best)
    follows_last = tf.concat([[False], is_last[:-1]], axis=0)[: tf.size(is_last)]
    begun = is_first | follows_last | _changes(rows) | _changes(tags)
    entity = tf.cumsum(tf.cast(begun, tf.int32)) - 1
    first = tf.math.segment_min(tf.range(tf.size(entity)), entity)
    shares = tf.math.segment_mean(tf.reduce_max(probabilities, axis=1), entity)
    rows, starts, ends = _joined(entity, rows, starts, ends)
    tags = tf.gather(tags, first)
    kept = tf.where((tags != OUTSIDE) & (starts < ends))[:, 0]
    return tuple(tf.gather(each, kept) for each in (rows, tags, shares, starts, ends))


def _changes(values):
    """Returns which values differ from the one before them; the first one does."""
    return tf.concat([[True], values[1:] != values[:-1]], axis=0)[: tf.size(values)]


def _joined(group, rows, starts, ends):
    """Returns the row, the first start and the last end of each group."""
    least, most = tf.math.segment_min, tf.math.segment_max
    return least(rows, group), least(starts, group), most(ends, group)
