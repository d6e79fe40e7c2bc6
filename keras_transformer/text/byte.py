"""A tokenizer of bytes."""

import tensorflow as tf

from keras_transformer.text.base import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    as_ragged,
    bytes_of,
    valid_utf8,
)

# It comes after pad, unk, bos and eos.
FIRST_BYTE = 4


class ByteTokenizer(Tokenizer):
    """A tokenizer with one id for each UTF-8 byte: byte `b` has id `b + 4`, after 0 pad, 1 unk, 2 bos and 3 eos.

    It needs no training, and no text is unknown. The price is sequences that are several times as long as those of
    subwords.

    >>> ByteTokenizer().tokenize(["Hi"])
    <tf.RaggedTensor [[76, 109]]>
    """

    vocab_size = FIRST_BYTE + 256
    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    # All byte tokenizers are equal, so there is nothing to save.
    content = b""
    _pieces = (
        "<pad>", "<unk>", "<s>", "</s>",
        *(chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>" for byte in range(256)),
    )  # fmt: skip

    def tokenize(self, strings):
        """Converts strings to ids.

        Args:
            strings: Strings `(batch,)`, or a single string.

        Returns:
            int32 ragged `(batch, None)`; `(length,)` for a single string. No special id is added.
        """
        strings = tf.convert_to_tensor(strings, tf.string)
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        pieces = tf.strings.bytes_split(valid_utf8(strings))
        values = tf.reshape(tf.io.decode_raw(pieces.flat_values, tf.uint8), [-1])
        return pieces.with_flat_values(tf.cast(values, tf.int32) + FIRST_BYTE)

    def locate(self, texts, characters):
        ids = self.tokenize(texts)
        starts = tf.ragged.range(ids.row_lengths())
        starts = ids.with_flat_values(tf.cast(starts.flat_values, tf.int32))
        return ids, bytes_of(characters), starts, starts + 1

    def detokenize(self, ids):
        """Converts ids to strings.

        Args:
            ids: int `(batch, length)`, ragged or padded, or `(length,)`.

        Returns:
            Strings `(batch,)`, or a single string. Pad, bos and eos are removed; unk and ids out of range become
            U+FFFD.
        """
        ids, single = as_ragged(ids, vocab_size=self.vocab_size)
        table = tf.constant([b"\xef\xbf\xbd"] * FIRST_BYTE + [bytes([b]) for b in range(256)])
        pieces = ids.with_flat_values(tf.gather(table, ids.flat_values))
        strings = valid_utf8(tf.strings.reduce_join(pieces, axis=-1))
        return strings[0] if single else strings

    def written(self):
        return [b""] * FIRST_BYTE + [bytes([byte]) for byte in range(256)]

    @classmethod
    def load(cls, path):
        """Returns a tokenizer. The file that `save` wrote is empty and is not read.

        Args:
            path: Path of the file.
        """
        return cls()
