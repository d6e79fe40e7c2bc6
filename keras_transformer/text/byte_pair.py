"""A tokenizer of byte-level pieces, those of GPT-2 and Llama 3."""

import json
import re
import unicodedata

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check, check_choice
from keras_transformer.text.added_tokens import SEPARATOR, AddedToken, AddedTokens, as_added_tokens
from keras_transformer.text.base import Tokenizer, as_ragged, bytes_of, read_json, valid_utf8
from keras_transformer.text.byte_patterns import NEW_MARK, PATTERNS
from keras_transformer.text.normal_forms import normalized

MISSING_BYTES = ("refused", "dropped", "unknown")
# The id of a byte that is dropped.
DROPPED = -1
# The rank of two neighbours that no merge joins.
NO_RANK = np.iinfo("int32").max
_NONCHARACTER = "\uffff"
UNKNOWN_TEXT = "\ufffd".encode()
# It stands before an added token. Valid UTF-8 does not contain it either.
FOUND = b"\xfe"


def _byte_characters():
    """Returns the 256 characters with which GPT-2 spells the bytes: printable ones for themselves, then the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {**{byte: byte for byte in printable}, **{byte: 256 + i for i, byte in enumerate(others)}}
    return [chr(codes[byte]) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


class BytePairTokenizer(Tokenizer):
    """A tokenizer of byte-level pieces (Radford et al., 2019, "GPT-2", section 2.2), as TensorFlow ops.

    It works in these steps:

    - A regular expression cuts a text into words. Most words begin with the blank before them.
    - The bytes of a word are its first pieces.
    - Of all pairs of neighbours in the word, the pair that comes first in `merges` is joined, until there is none.

    No text is unknown, and every text comes back exactly, unless `missing_bytes` says otherwise. The ids are those of
    Hugging Face's `tokenizers`.

    Args:
        vocabulary: List of str, the pieces in the order of their ids. A piece is spelled as in GPT-2's files: with a
            printable character for each byte, such as "Ġ" for the blank. It must contain all 256 bytes, unless
            `missing_bytes` says what becomes of one. No text has an empty piece, which Whisper's has.
        merges: List of str, "left right", the pairs of pieces that are joined, most important first.
        pattern: The regular expression: "gpt2" (also RoBERTa and BART); "gpt2_digits", the same where each digit is cut
            out first (SmolLM2); "llama3", where digits come in groups of three; "qwen2", where each digit is a word.
        nfc: Whether texts are normalised to Unicode's form NFC first, as for Qwen 2. Then a text comes back in that
            form.
        ignore_merges: Whether a word that is in the vocabulary becomes that piece, whatever the merges are, as for
            Llama 3.
        special_tokens: Pieces with a meaning of their own, such as `<|endoftext|>`, spelled as they are. `detokenize`
            leaves them out. The four tokens below are special too.
        added_tokens: Other pieces that are spelled as they are, str or `AddedToken`. A text that contains one gets its
            id.
        parse_special: Whether a text that contains a special token gets its id. False is safe for texts of strangers,
            who cannot end a prompt then. True is what a chat template needs, and what transformers does.
        pad_token: The token of padding; None for no such token.
        unk_token: The token that replaces an unknown id in the input of a model; `eos_token` when None.
        bos_token: The token at the beginning of a text; None for no such token.
        eos_token: The token at the end of a text; None for no such token.
        prefix_space: Whether a text that does not begin with a blank gets one, and so does the text after an added
            token.
        missing_bytes: What becomes of a byte of a text that is not in the vocabulary: "refused", so that there is none;
            "dropped", as `tokenizers` does without an unknown token; or "unknown", which is `unk_token` for each byte.

    Attributes:
        vocab_size: Number of ids.
        pad_id, bos_id, eos_id: The special ids, int or None.
        unk_id: The id of `unk_token`, an int; 0 where there is neither `unk_token` nor `eos_token`.
        content: The bytes of the file that `save` writes.

    Raises:
        ValueError: If `pattern` or `missing_bytes` is unknown, `vocabulary` has a piece twice or lacks a byte that is
            neither dropped nor unknown, or a merge or a token has a piece that is not in `vocabulary`.

    >>> pieces = [*BYTE_CHARACTERS, "he", "ll", "hell", "hello", "Ġhello", "<|end|>"]
    >>> merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    >>> tokenizer = BytePairTokenizer(pieces, merges, eos_token="<|end|>")
    >>> tokenizer.tokenize(["hello hello!"])
    <tf.RaggedTensor [[259, 260, 33]]>
    >>> tokenizer.detokenize([[259, 260, 33, 261]]).numpy()
    array([b'hello hello!'], dtype=object)
    """

    def __init__(
        self,
        vocabulary,
        merges,
        pattern="gpt2",
        *,
        nfc=False,
        ignore_merges=False,
        special_tokens=(),
        added_tokens=(),
        parse_special=False,
        pad_token=None,
        unk_token=None,
        bos_token=None,
        eos_token=None,
        prefix_space=False,
        missing_bytes="refused",
    ):
        super().__init__()
        rule = f"`pattern` must be one of {sorted(PATTERNS)}."
        check(isinstance(pattern, str) and pattern in PATTERNS, rule, pattern=pattern)
        check_choice(MISSING_BYTES, missing_bytes=missing_bytes)
        rule = '`missing_bytes="unknown"` needs an `unk_token`.'
        check(missing_bytes != "unknown" or unk_token is not None, rule, unk_token=unk_token)
        named = {
            "pad_token": pad_token,
            "unk_token": unk_token,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        special = dict.fromkeys([*special_tokens, *(token for token in named.values() if token is not None)])
        config = {
            "vocabulary": list(vocabulary),
            "merges": list(merges),
            "pattern": pattern,
            "nfc": bool(nfc),
            "ignore_merges": bool(ignore_merges),
            "special_tokens": list(special),
            "added_tokens": [],
            "prefix_space": bool(prefix_space),
            "missing_bytes": missing_bytes,
            "parse_special": bool(parse_special),
            **named,
        }
        ids, added = _ids_of(config["vocabulary"], missing_bytes), as_added_tokens(added_tokens)
        plain = AddedToken("")[1:]
        config["added_tokens"] = [token if token[1:] != plain else token.content for token in added]
        added = {token.content: token for token in added}
        for name, tokens in (("special_tokens", special), ("added_tokens", added)):
            _check_tokens(name, tokens, ids, nfc)
        self.content = json.dumps(config, ensure_ascii=False).encode()
        self.vocab_size = len(ids)
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = map(ids.get, named.values())
        # Without "unknown", text never becomes `unk_token`, which may be the end of the text, too (GPT-2).
        self._writes_all = missing_bytes != "unknown"
        if self.unk_id is None:
            self.unk_id = self.eos_id or 0
        missing = self.unk_id if missing_bytes == "unknown" else DROPPED
        byte_ids = [ids.get(character, missing) for character in BYTE_CHARACTERS]
        self._drops = DROPPED in byte_ids
        self._last_blank, self._words = PATTERNS[pattern]
        self._nfc = config["nfc"]

        as_they_are = {*special, *added}
        spelled = {piece: _bytes_of(piece) for piece in ids if piece not in as_they_are}
        texts = {piece: spelled.get(piece) or piece.encode() for piece in ids}
        # An array, because tf.Module looks through the items of a list whenever it is saved.
        self._pieces = np.array([_shown(text) for text in texts.values()], object)
        dropped = {*special, *(token.content for token in added.values() if token.special)}
        written = [b"" if piece in dropped else text for piece, text in texts.items()]
        self._texts = tf.constant([*written, UNKNOWN_TEXT])
        self._byte_ids = tf.constant(byte_ids)
        self._whole = None
        self._prepare_merges(ids, config["merges"])
        tokens = {token: AddedToken(token) for token in special} if parse_special else {}
        tokens = {**tokens, **added}
        ordinary = [
            piece for piece, text in spelled.items() if text and (ignore_merges or ids.keys() >= {*piece})
        ]
        if not ignore_merges:
            ordinary = self._joined_to_one(ordinary, [texts[piece] for piece in ordinary])
        whole = {texts[piece]: ids[piece] for piece in ordinary}
        whole |= {FOUND + str(ids[piece]).encode(): ids[piece] for piece in tokens}
        self._whole = _table(list(whole), list(whole.values()), -1)
        self._added = AddedTokens(tokens.values(), ids, self._in_nfc if nfc else None)
        self._prefix_space = config["prefix_space"]

    def _prepare_merges(self, ids, merges):
        """Creates the table from pairs of ids to the ranks of their merges, and the list of the merged ids."""
        left, right, merged = _ids_of_merges(ids, merges)
        ranks = np.arange(left.size, dtype="int32")
        # Of several merges of one pair the last one counts, as in tokenizers.
        keys, last = np.unique((left * self.vocab_size + right)[::-1], return_index=True)
        self._ranks = _table(keys, ranks[::-1][last], NO_RANK)
        self._merged_ids = tf.constant(merged, tf.int32)
        # A merge joins all of its pairs in one step. Where a merge of a lower rank uses the new piece, that one comes
        # next: then only the first pair is joined.
        lowest = np.full(self.vocab_size, NO_RANK)
        for part in (left, right):
            np.minimum.at(lowest, part, ranks)
        alone = lowest[merged] < ranks
        self._alone = tf.constant(alone) if alone.any() else None

    def _joined_to_one(self, pieces, texts):
        """Returns the pieces whose text becomes one id, a list of str.

        They are most of the words in a text. To look a word up instead of joining its bytes takes half the time.
        """
        ids = self._joined(tf.constant(texts), tf.range(len(texts), dtype=tf.int64), len(texts))
        return [piece for piece, count in zip(pieces, ids.row_lengths().numpy(), strict=True) if count == 1]

    def tokenize(self, strings):
        """Converts strings to ids.

        Args:
            strings: Strings `(batch,)`, or a single string. Invalid UTF-8 is read as U+FFFD.

        Returns:
            int32 ragged `(batch, None)`; `(length,)` for a single string. No special id is added.
        """
        strings = tf.convert_to_tensor(strings, tf.string)
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        texts = valid_utf8(strings)
        texts, ids, rows = self._added.split(texts)
        if self._nfc:
            texts = self._in_nfc(texts)
        if self._prefix_space:
            texts = tf.strings.regex_replace(texts, r"^([^ ])", r" \1")
        texts = tf.strings.regex_replace(texts, self._last_blank, rb"\1" + SEPARATOR + rb"\2\3")
        texts = tf.strings.regex_replace(texts, self._words, rb"\0" + SEPARATOR)
        if self._added:
            texts = tf.where(ids >= 0, tf.strings.join([FOUND, tf.strings.as_string(ids)]), texts)
        words = tf.strings.split(texts, SEPARATOR)
        rows = tf.gather(rows, words.value_rowids())
        return self._joined(words.flat_values, rows, tf.size(strings, tf.int64))

    @property
    def hides_characters(self):
        changes = self._drops or not self._writes_all
        found = {"added_tokens": bool(self._added), "nfc": self._nfc, "missing_bytes": changes}
        return {name: value for name, value in found.items() if value}

    def locate(self, texts, characters):
        ids, sizes = self.tokenize(texts), bytes_of(characters)
        lengths = ids.with_flat_values(tf.strings.length(tf.gather(self._texts, ids.flat_values)))
        # A blank that was put before a text is none of its characters.
        added = tf.reduce_sum(lengths, axis=1) - tf.reduce_sum(sizes, axis=1)
        before = tf.cumsum(tf.reduce_sum(lengths, axis=1), exclusive=True) + added
        ends = tf.cumsum(lengths.flat_values) - tf.gather(before, ids.value_rowids())
        starts = tf.maximum(0, ends - lengths.flat_values)
        return ids, sizes, ids.with_flat_values(starts), ids.with_flat_values(ends)

    def _in_nfc(self, texts):
        """Normalises texts to NFC, as tokenizers does."""
        texts = tf.strings.regex_replace(texts, NEW_MARK, _NONCHARACTER + r"\1" + _NONCHARACTER)
        texts = normalized(texts, "NFC")
        return tf.strings.regex_replace(texts, _NONCHARACTER + NEW_MARK + _NONCHARACTER, r"\1")

    def _joined(self, words, rows, num_rows):
        """Converts words to ids, by joining their bytes.

        Args:
            words: Strings `(num_words,)`. Some may be empty.
            rows: int64 `(num_words,)`, the number of the text in which a word is.
            num_rows: int64 scalar, the number of texts.

        Returns:
            int32 ragged `(num_rows, None)`.
        """
        whole = None if self._whole is None else self._whole.lookup(words)
        if whole is not None:
            # One byte stands for the word. Its id is replaced below.
            words = tf.where(whole >= 0, "\0", words)
        lengths = tf.strings.length(words)
        real = tf.where(lengths > 0)[:, 0]
        ends = tf.cumsum(tf.gather(lengths, real))
        codes = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
        is_last = tf.scatter_nd(ends[:, None] - 1, tf.ones_like(ends), tf.shape(codes)) > 0
        word = tf.gather(real, tf.cumsum(tf.cast(is_last, tf.int32), exclusive=True))
        ids = tf.gather(self._byte_ids, codes)
        if whole is not None:
            whole = tf.gather(whole, word)
            ids = tf.where(whole >= 0, whole, ids)
        if self._drops:
            ids, word, is_last = _without_dropped(ids, word)
        ids = self._merge(ids, is_last)
        kept = tf.where(ids >= 0)[:, 0]
        rows = tf.gather(tf.gather(rows, word), kept)
        return tf.RaggedTensor.from_value_rowids(tf.gather(ids, kept), rows, num_rows, validate=False)

    def _merge(self, ids, is_last):
        """Joins neighbours until no merge applies.

        Args:
            ids: int32 `(n,)`, the ids of the bytes of all words.
            is_last: bool `(n,)`, whether a byte is the last of its word.

        Returns:
            int32 `(n,)`: the id of a token at its first byte, -1 at its other bytes.
        """

        def step(tokens, ids, is_last, place, ranks):
            # `ids` holds the pieces of the words that are not finished, `place` their first bytes, and `ranks` the rank
            # of each piece with its neighbour on the right. In each word the pair of the lowest rank is joined.
            word = tf.cumsum(tf.cast(is_last, tf.int32), exclusive=True)
            lowest = tf.gather(tf.math.segment_min(ranks, word), word)
            joined = (ranks == lowest) & (ranks < NO_RANK)
            index = tf.range(tf.size(ids))
            if self._alone is not None:
                first = tf.gather(tf.math.segment_min(tf.where(joined, index, NO_RANK), word), word)
                alone = tf.gather(self._alone, tf.where(joined, ranks, 0))
                joined &= ~alone | (index == first)
            # Of "aaa" the first two are joined: in a run of pairs every second one is left out.
            others = tf.concat([[-1], tf.cast(tf.where(~joined)[:, 0], tf.int32)], axis=0)
            run_start = tf.gather(others, tf.cumsum(tf.cast(~joined, tf.int32)))
            joined &= (index - run_start) % 2 == 1
            removed = tf.concat([[False], joined[:-1]], axis=0)
            ids = tf.where(joined, tf.gather(self._merged_ids, tf.where(joined, ranks, 0)), ids)
            is_last = tf.where(joined, tf.concat([is_last[1:], [True]], axis=0), is_last)
            changed = tf.where(joined | removed)
            tokens = tf.tensor_scatter_nd_update(
                tokens, tf.gather(place, changed), tf.gather(tf.where(removed, -1, ids), changed[:, 0])
            )
            kept = tf.where((lowest < NO_RANK) & ~removed)[:, 0]
            ids, is_last, place, ranks, joined = (
                tf.gather(each, kept) for each in (ids, is_last, place, ranks, joined)
            )
            # The ranks of the pairs with a new piece.
            stale = tf.where(joined | tf.concat([joined[1:], [False]], axis=0))
            right = tf.gather(tf.concat([ids[1:], [0]], axis=0), stale[:, 0])
            new = self._ranks_of(tf.gather(ids, stale[:, 0]), right, tf.gather(is_last, stale[:, 0]))
            return tokens, ids, is_last, place, tf.tensor_scatter_nd_update(ranks, stale, new)

        ranks = self._ranks_of(ids, tf.concat([ids[1:], [0]], axis=0), is_last)
        state = ids, ids, is_last, tf.range(tf.size(ids)), ranks
        return tf.while_loop(
            lambda tokens, ids, *_: tf.size(ids) > 0,
            step,
            state,
            shape_invariants=(tf.TensorShape([None]),) * len(state),
        )[0]

    def _ranks_of(self, left, right, is_last):
        """Returns the ranks of pairs of ids, int32; `NO_RANK` for the last piece of a word."""
        keys = tf.cast(left, tf.int64) * self.vocab_size + tf.cast(right, tf.int64)
        return tf.where(is_last, NO_RANK, self._ranks.lookup(keys))

    def detokenize(self, ids):
        """Converts ids to strings.

        Args:
            ids: int `(batch, length)`, ragged or padded, or `(length,)`.

        Returns:
            Strings `(batch,)`, or a single string. Special tokens are removed; an id out of range, and bytes that are
            no UTF-8, become U+FFFD.
        """
        ids, single = as_ragged(ids, (), unk_id=self.vocab_size, vocab_size=self.vocab_size)
        texts = ids.with_flat_values(tf.gather(self._texts, ids.flat_values))
        strings = valid_utf8(tf.strings.reduce_join(texts, axis=-1))
        return strings[0] if single else strings

    def written(self):
        return self._texts.numpy().tolist()[: self.vocab_size]

    def get_config(self):
        """Returns the arguments of the constructor, a dict."""
        return json.loads(self.content)

    def is_unknown(self, ids):
        """Returns which ids stand for text that the vocabulary cannot write: none unless `missing_bytes` is "unknown".

        Args:
            ids: int, of any shape, an array, a tensor or a ragged tensor.

        Returns:
            bool of the same shape, a tensor.
        """
        return tf.zeros_like(ids, tf.bool) if self._writes_all else super().is_unknown(ids)

    @classmethod
    def load(cls, path):
        """Reads a tokenizer.

        Args:
            path: Path of a file that `save` wrote.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        return read_json(path, lambda config: cls(**config))


def _without_dropped(ids, word):
    """Drops the bytes that have no id.

    Args:
        ids: int32 `(n,)`, the id of each byte, `DROPPED` for some.
        word: int64 `(n,)`, the number of the word of each byte.

    Returns:
        The ids and the words of the other bytes, and whether each is the last one of its word, bool.
    """
    kept = tf.where(ids != DROPPED)[:, 0]
    ids, word = tf.gather(ids, kept), tf.gather(word, kept)
    return ids, word, tf.concat([word[1:] != word[:-1], tf.ones_like(word[-1:], tf.bool)], axis=0)


def _table(keys, values, default):
    keys = tf.constant(keys)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(values, tf.int32))
    return tf.lookup.StaticHashTable(initializer, default)


def _bytes_of(piece):
    """Returns the bytes of a piece that is spelled with `BYTE_CHARACTERS`; None for any other piece."""
    codes = [_BYTES.get(character) for character in piece]
    return None if None in codes else bytes(codes)


def _ids_of(vocabulary, missing_bytes):
    """Returns a dict from piece to id, or raises `ValueError` for a vocabulary that is not valid."""
    ids = {piece: i for i, piece in enumerate(vocabulary) if _is_text(piece)}
    if len(ids) < len(vocabulary):
        raise ValueError(
            "`vocabulary` must hold different str, and none may have half of a surrogate pair. "
            f"Received: {len(vocabulary)} pieces, {len(ids)} different str."
        )
    for character in BYTE_CHARACTERS:
        if character not in ids and missing_bytes == "refused":
            raise ValueError(
                f"`vocabulary` must have a piece for each byte. Received: {character!r} is missing."
            )
    return ids


def _is_text(piece):
    return isinstance(piece, str) and not re.search("[\ud800-\udfff]", piece)


def _check_tokens(name, tokens, ids, nfc):
    """Raises `ValueError` for a token that no text can contain."""
    for token in tokens:
        if not token or token not in ids:
            raise ValueError(f"`{name}` must be in `vocabulary`. Received: {token!r:.200}.")
        if nfc and not unicodedata.is_normalized("NFC", token):
            raise ValueError(
                f"`{name}` must be in Unicode's form NFC where texts are. Received: {token!r:.200}."
            )


def _ids_of_merges(ids, merges):
    """Returns the ids of the left pieces, of the right pieces and of both together, int64 arrays."""
    rows = []
    for merge in merges:
        left, _, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
        if "" in (left, right) or not {left, right, left + right} <= ids.keys():
            raise ValueError(
                "`merges` must be lines of two pieces, and the pieces and both together must be in `vocabulary`. "
                f"Received: {merge!r:.200}."
            )
        rows.append((ids[left], ids[right], ids[left + right]))
    # TensorFlow has no empty tables. No pair has the ids of this row.
    return np.array(rows or [(-1, -1, 0)], "int64").T


def _shown(text):
    """Returns the bytes of a piece as people can read them: with a sign for the blank, as SentencePiece shows it."""
    return text.decode(errors="backslashreplace").replace(" ", "\u2581")
