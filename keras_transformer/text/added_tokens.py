"""Tokens that a text contains as they are, in addition to the pieces of a tokenizer, as TensorFlow ops."""

import collections
import re
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.checks import check

# Valid UTF-8 does not contain it.
SEPARATOR = b"\xff"
# The white space and the characters of words of Unicode, which RE2's `\s` and `\w` do not know.
_BLANKS = r"[\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"
_LETTER = (
    r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}"
    r"\x{1F170}-\x{1F189}]"
)


class AddedToken(NamedTuple):
    """A token that is found in texts before they are split into pieces, as in Hugging Face's `tokenizers`.

    Attributes:
        content: Its text.
        special: Whether `detokenize` leaves it out.
        lstrip: Whether it takes the white space before it.
        rstrip: Whether it takes the white space after it.
        single_word: Whether it is a token only where no letter, digit or underscore is next to it.
        normalized: Whether it is normalised as texts are, and found in normalised texts. Tokens that are not are found
            first, in texts as they are.

    >>> AddedToken("[E1]", lstrip=True).lstrip
    True
    """

    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


def as_added_tokens(tokens):
    """Returns a tuple of `AddedToken`.

    Args:
        tokens: A sequence of `AddedToken`, of lists with the same items, or of str.

    Raises:
        ValueError: If an item is none of them, a content is empty or is there twice.
    """
    made = []
    for token in tokens:
        items = [token] if isinstance(token, str) else token
        is_token = isinstance(items, (list, tuple)) and 1 <= len(items) <= len(AddedToken._fields)
        is_token = is_token and isinstance(items[0], str) and items[0] != ""
        is_token = is_token and all(isinstance(flag, bool) for flag in items[1:])
        check(is_token, "`added_tokens` must hold texts or `AddedToken`.", token=token)
        made.append(AddedToken(*items))
    counts = collections.Counter(token.content for token in made)
    twice = [content for content, count in counts.items() if count > 1]
    check(not twice, "`added_tokens` must be different.", content=twice[:1])
    return tuple(made)


class AddedTokens(tf.Module):
    """Finds added tokens in texts.

    Of the tokens that begin at one place the longest is found, and the next one is looked for after its end.

    Args:
        tokens: A sequence of `AddedToken`.
        ids: A dict from the content of each to its id.
        normalize: A function from strings `(n,)` to their normal form, as TensorFlow ops; None where texts stay as they
            are.
    """

    def __init__(self, tokens, ids, normalize=None):
        super().__init__()
        self._normalize = normalize
        groups = {False: {}, True: {}}
        for token in tokens:
            content = token.content
            if token.normalized and normalize is not None:
                content = normalize(tf.constant([content])).numpy()[0].decode()
            if content:
                groups[token.normalized].setdefault(content, (token, ids[token.content]))
        self._groups = [_Group(group) for group in groups.values() if group]

    def __bool__(self):
        return bool(self._groups)

    def split(self, texts):
        """Cuts texts at the tokens in them.

        Args:
            texts: Strings `(n,)` of valid UTF-8.

        Returns:
            Strings `(m,)`, the parts of the texts, where a token is an empty string; int32 `(m,)`, the id of the token,
            or -1 for any other part; and int64 `(m,)`, the number of the text in which a part is. A text begins and
            ends with a part that is not a token. Where a token is normalised, parts are.
        """
        number = tf.size(texts, tf.int64)
        ids, rows = tf.fill([number], -1), tf.range(number)
        for group in self._groups:
            if group.normalized and self._normalize is not None:
                texts = self._normalize(texts)
            texts, ids, rows = group.split(texts, ids, rows)
        return texts, ids, rows


def join(pieces, ids, rows, number):
    """Puts the ids of tokens between the ids of the other parts of texts.

    Args:
        pieces: int32 ragged `(m, None)`, the ids of each part that `AddedTokens.split` gave.
        ids: int32 `(m,)`, the ids of the tokens, or -1.
        rows: int64 `(m,)`, the number of the text in which a part is.
        number: int64 scalar, the number of texts.

    Returns:
        int32 ragged `(number, None)`.
    """
    found = tf.where(ids >= 0)[:, 0]
    part = tf.concat([pieces.value_rowids(), found], axis=0)
    order = tf.argsort(part, stable=True)
    values = tf.gather(tf.concat([pieces.flat_values, tf.gather(ids, found)], axis=0), order)
    rows = tf.gather(rows, tf.gather(part, order))
    return tf.RaggedTensor.from_value_rowids(values, rows, number, validate=False)


class _Group(tf.Module):
    """The tokens that are found in texts of one form.

    Args:
        tokens: A dict from the text to be found to its `AddedToken` and its id.
    """

    def __init__(self, tokens):
        super().__init__()
        self.normalized = next(iter(tokens.values()))[0].normalized
        # Of two tokens that begin at one place, the longer one is taken.
        contents = sorted(tokens, key=len, reverse=True)
        self._found = f"({'|'.join(map(re.escape, contents))})"
        values = tf.constant([tokens[content][1] for content in contents], tf.int32)
        self._ids = _table(contents, values)
        self._flags = {}
        for name in ("lstrip", "rstrip", "single_word"):
            flags = [getattr(tokens[content][0], name) for content in contents]
            self._flags[name] = _table(contents, tf.constant(flags, tf.int32)) if any(flags) else None

    def split(self, texts, ids, rows):
        """Cuts the parts that are not tokens; arguments and results as the results of `AddedTokens.split`."""
        marked = tf.strings.regex_replace(texts, self._found, SEPARATOR + rb"\1" + SEPARATOR)
        parts = tf.strings.split(marked, SEPARATOR)
        texts, sources = parts.flat_values, parts.value_rowids()
        # Text and tokens take turns in a source, and text comes first.
        place = tf.range(tf.size(texts, tf.int64)) - tf.gather(parts.row_starts(), sources)
        is_token = place % 2 == 1
        if self._flags["single_word"] is not None:
            texts, sources, is_token = self._without_parts_of_words(texts, sources, is_token)
        for name, neighbour, blanks in (("rstrip", 1, f"^{_BLANKS}"), ("lstrip", -1, f"{_BLANKS}$")):
            if self._flags[name] is not None:
                strips = tf.roll(is_token & self._flag(name, texts), neighbour, 0)
                texts = tf.where(strips, tf.strings.regex_replace(texts, blanks, ""), texts)
        ids = tf.where(is_token, self._ids.lookup(texts), tf.gather(ids, sources))
        return tf.where(is_token, "", texts), ids, tf.gather(rows, sources)

    def _flag(self, name, texts):
        return self._flags[name].lookup(texts) > 0

    def _without_parts_of_words(self, texts, sources, is_token):
        """Joins the tokens that must be words of their own, and are not, with the texts next to them."""
        touches = tf.zeros_like(is_token)
        for step, letter in ((1, f"(?s).*{_LETTER}"), (-1, f"(?s){_LETTER}.*")):
            near, far = _shifted(texts, step, ""), _shifted(texts, 2 * step, "")
            # Without text between two tokens, the character next to one belongs to the other.
            far = tf.where(_shifted(sources, 2 * step, -1) == sources, far, "")
            touches |= tf.strings.regex_full_match(tf.where(near == "", far, near), letter)
        is_token &= ~(self._flag("single_word", texts) & touches)
        ends = tf.concat([[False], is_token[:-1]], axis=0)
        first = tf.concat([[True], sources[1:] != sources[:-1]], axis=0)[: tf.size(sources)]
        starts = is_token | ends[: tf.size(sources)] | first
        part = tf.cumsum(tf.cast(starts, tf.int64)) - 1
        kept = tf.where(starts)[:, 0]
        texts = tf.strings.unsorted_segment_join(texts, part, tf.size(kept))
        return texts, tf.gather(sources, kept), tf.gather(is_token, kept)


def _shifted(x, step, fill):
    """Moves the items of a tensor `(n,)` by some places, forward where `step` is positive."""
    filled = tf.fill([abs(step)], tf.constant(fill, x.dtype))
    if step > 0:
        return tf.concat([filled, x], axis=0)[: tf.size(x)]
    return tf.concat([x, filled], axis=0)[-step:]


def _table(keys, values):
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), values)
    return tf.lookup.StaticHashTable(initializer, -1)
