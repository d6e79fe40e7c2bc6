"""A tokenizer of bytes, which needs no training."""

import tensorflow as tf

from keras_transformer.text.base import BOS_ID, EOS_ID, PAD_ID, UNK_ID, as_ragged, valid_utf8

FIRST_BYTE = 4  # after pad, unk, bos and eos


class ByteTokenizer(tf.Module):
    """One id for each UTF-8 byte: byte `b` has id `b + 4`, after 0 pad, 1 unk, 2 bos and 3 eos.

    Needs no training and has no unknown text, at the price of sequences several times as long.

    >>> ByteTokenizer().tokenize(["Hi"])
    <tf.RaggedTensor [[76, 109]]>
    """

    vocab_size = FIRST_BYTE + 256
    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    content = b""  # what tells it from others of its class

    def tokenize(self, strings):
        """Strings `(batch,)` to int32 ragged ids `(batch, None)`; a single string to `(length,)`."""
        strings = tf.convert_to_tensor(strings, tf.string)
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        pieces = tf.strings.bytes_split(valid_utf8(strings))
        values = tf.reshape(tf.io.decode_raw(pieces.flat_values, tf.uint8), [-1])
        return pieces.with_flat_values(tf.cast(values, tf.int32) + FIRST_BYTE)

    def detokenize(self, ids):
        """Ids `(batch, length)`, ragged or padded, to strings `(batch,)`; unknown ids become U+FFFD."""
        ids, single = as_ragged(ids)
        table = tf.constant([b"\xef\xbf\xbd"] * FIRST_BYTE + [bytes([b]) for b in range(256)])
        known = tf.where((ids >= FIRST_BYTE) & (ids < self.vocab_size), ids, tf.ones_like(ids) * UNK_ID)
        pieces = known.with_flat_values(tf.gather(table, known.flat_values))
        strings = valid_utf8(tf.strings.reduce_join(pieces, axis=-1))
        return strings[0] if single else strings

    def pieces(self, ids):
        """The text of each id, a list of str: for people to look at."""
        names = ["<pad>", "<unk>", "<s>", "</s>"]
        names += [chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>" for byte in range(256)]
        return [names[i] for i in ids]

    def save(self, path):
        """Writes nothing that loading needs: an empty file, so that every tokenizer has one."""
        with open(path, "wb"):
            pass

    @classmethod
    def load(cls, path):
        """A tokenizer as `save` wrote it."""
        return cls()
