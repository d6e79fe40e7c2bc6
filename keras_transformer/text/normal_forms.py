"""Unicode's normal forms of texts, as TensorFlow ops, in a time that is proportional to their length."""

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.text.added_tokens import SEPARATOR

# The stream-safe format of UAX #15 has at most this many combining marks in a row. No writing system needs more.
LONGEST_RUN = 30
_RUN = rf"\p{{M}}{{{LONGEST_RUN}}}"


def normalized(texts, form):
    """Normalises texts to one of Unicode's forms.

    ICU sorts the combining marks of a run by insertion, which takes a time that grows with the square of their number.
    So a run is cut after every 30 marks, as in the stream-safe format of UAX #15, and each part is normalised alone. A
    text whose runs are shorter gets its normal form. No character is added.

    Args:
        texts: Strings of any shape, valid UTF-8.
        form: Name of the form, such as "NFC".

    Returns:
        Strings of the same shape.
    """
    flat = tf.reshape(texts, [-1])
    cut = tf.strings.regex_replace(flat, _RUN, rb"\0" + SEPARATOR)

    def in_parts():
        parts = tf.strings.split(cut, SEPARATOR)
        parts = parts.with_flat_values(tf_text.normalize_utf8(parts.flat_values, form))
        return tf.strings.reduce_join(parts, axis=-1)

    # Few texts have a long run, and splitting takes longer than the rest.
    normal = tf.cond(tf.reduce_any(cut != flat), in_parts, lambda: tf_text.normalize_utf8(flat, form))
    return tf.ensure_shape(tf.reshape(normal, tf.shape(texts)), texts.shape)
