"""What all tokenizers share: special ids, saving, and the cleaning of strings and ids."""

import functools
from pathlib import Path

import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.text.spans import characters_of, spans_of
from keras_transformer.untrusted import read_json as read_object

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3


class Tokenizer(tf.Module):
    """Base class of the tokenizers.

    A subclass sets `_pieces`, a list with the text of each id, and defines `tokenize`, `detokenize`, `written`,
    `content` (the bytes of its file) and `load`; and `locate` for `spans`.
    """

    @property
    def hides_characters(self):
        """The arguments because of which `spans` cannot find the characters of an id, a dict by name."""
        return {} if type(self).locate is not Tokenizer.locate else {"tokenizer": type(self).__name__}

    def pieces(self, ids):
        """Returns the text of each id, for people to look at.

        Args:
            ids: Iterable of int.

        Returns:
            A list of str.

        Raises:
            IndexError: If an id is not below `vocab_size`.
        """
        return [self._pieces[i] for i in ids]

    def written(self):
        """Returns the bytes that each id adds to a text, a list of bytes; none for an id that `detokenize` removes."""
        raise NotImplementedError

    def spans(self, strings):
        """Converts strings to ids, and finds the characters of each id.

        Args:
            strings: Strings `(batch,)`.

        Returns:
            The ids of `tokenize`, int32 ragged `(batch, None)`. And as ragged tensors of the same shape: the first
            character of each and the one after its last, int32, without blanks at their edges; and whether the id
            begins a word, bool.

        Raises:
            ValueError: If the tokenizer changes texts in a way that hides where a character stood.
        """
        rule = "`spans` is for a tokenizer without these arguments, which hide where a character stood."
        check(not self.hides_characters, rule, **self.hides_characters)
        texts = valid_utf8(tf.convert_to_tensor(strings, tf.string))
        characters = characters_of(texts)
        ids, sizes, starts, ends = self.locate(texts, characters)
        starts, ends, begins = spans_of(characters, sizes, starts, ends)
        return ids, starts, ends, self._begins(ids, begins)

    def locate(self, texts, characters):
        """Returns the ids of texts, and `sizes`, `starts` and `ends` of `spans_of`."""
        raise NotImplementedError

    def _begins(self, ids, begins):
        """Returns which ids begin a word; `begins` says which are the first of a word between blanks."""
        return begins

    def is_unknown(self, ids):
        """Returns which ids stand for text that the vocabulary cannot write, such as `<unk>`.

        Args:
            ids: int, of any shape, an array, a tensor or a ragged tensor.

        Returns:
            bool of the same shape, a tensor.
        """
        return tf.equal(ids, self.unk_id)

    def save(self, path):
        """Writes the tokenizer to a file that `load` reads.

        Args:
            path: Path of the file.
        """
        Path(path).write_bytes(self.content)


def read_json(path, make):
    """Makes a tokenizer of a JSON file.

    Args:
        path: Path of the file.
        make: A function of the file's content that returns the tokenizer.

    Returns:
        The tokenizer.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    try:
        return make(read_object(path))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot read a tokenizer from {path}: {error!r:.500}") from None


def list_of_sentences(sentences):
    """Returns the sentences that train a tokenizer as a list. Raises `ValueError` for one str, a list of letters."""
    if isinstance(sentences, (str, bytes)):
        raise ValueError(f"`sentences` must be an iterable of str. Received: one string, {sentences!r:.200}.")
    return list(sentences)


def valid_utf8(strings):
    """Replaces each invalid byte sequence of strings by U+FFFD, as a TensorFlow op.

    Args:
        strings: string tensor of any shape.

    Returns:
        string tensor of the same shape.
    """
    return tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")


def bytes_of(characters):
    """Returns the number of bytes of each character, int32 ragged `(batch, None)`."""
    return characters.with_flat_values(tf.strings.length(characters.flat_values))


def as_ragged(ids, special=(PAD_ID, BOS_ID, EOS_ID), unk_id=UNK_ID, vocab_size=None):
    """Converts ids to int32 ragged rows, without special ids.

    Args:
        ids: int `(batch, length)`, ragged or padded, or `(length,)`: a tensor, an array or lists.
        special: The ids to remove: padding, and the ids that start or end a text. None entries are skipped.
        unk_id: The id that replaces an id out of range.
        vocab_size: Ids outside `[0, vocab_size)` are out of range; when None, those that int32 cannot hold.

    Returns:
        int32 ragged `(batch, None)`, and a bool: whether the input was a single row.
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
    # A cast alone would turn an id out of range into another id.
    if ids.dtype == tf.int64:
        ids = _or_unknown(ids, tf.int32.max, unk_id)
    ids = tf.cast(ids, tf.int32)
    equal = [tf.equal(ids, token_id) for token_id in special if token_id is not None]
    is_special = functools.reduce(tf.logical_or, equal, tf.zeros_like(ids, tf.bool))
    ids = tf.ragged.boolean_mask(ids, ~is_special)
    return ids if vocab_size is None else _or_unknown(ids, vocab_size - 1, unk_id), single


def _or_unknown(ids, largest, unk_id):
    return tf.where((ids >= 0) & (ids <= largest), ids, tf.ones_like(ids) * unk_id)
