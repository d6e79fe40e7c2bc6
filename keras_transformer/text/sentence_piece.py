"""A tokenizer of SentencePiece subwords."""

import base64
import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops import sentencepiece_tokenizer

from keras_transformer.text.base import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    as_ragged,
    list_of_sentences,
    valid_utf8,
)

BLANK = "\u2581"  # SentencePiece writes it instead of a space
SPECIAL = {"pad_id": "<pad>", "unk_id": "<unk>", "bos_id": "<s>", "eos_id": "</s>"}
LEAST_LIMIT = 10  # SentencePiece refuses a lower `max_sentence_length`
UNKNOWN_TEXT = " \u2047 "  # what SentencePiece writes for an unknown id
# Pieces that a text may contain literally, and that SentencePiece would split: T5's `<extra_id_0>`, Marian's `>>de<<`.
SYMBOL = re.compile(r"<extra_id_\d+>|>>.+<<")
SEPARATOR = "\x01"  # put around symbols
# SentencePiece drops a sentence with its mark of unknown characters, and refuses a half of a surrogate pair.
RESERVED = re.compile("[\u2585\ud800-\udfff]")


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer with the subwords of a SentencePiece model (Kudo and Richardson, 2018), as TensorFlow ops.

    A tokenizer that `train` made has the ids 0 pad, 1 unk, 2 bos and 3 eos. Any other model has its own ids; see
    `pad_id`, `unk_id`, `bos_id` and `eos_id`, which are None where the model has no such id.

    Args:
        model: A SentencePiece model: its bytes or the path of its file.
        vocabulary: List of str, the pieces in the order of their ids, if the ids are not those of the model. A piece
            of the model that is not in the list becomes unk. `<pad>`, `<s>` and `</s>` in the list give the special
            ids. `<extra_id_0>`, `>>de<<` and similar symbols in the list get their ids where a text contains them.
            Any other piece that the model does not know is used by `detokenize` only.

    Attributes:
        vocab_size: Number of ids.
        pad_id, unk_id, bos_id, eos_id: The special ids, int or None.
        content: The bytes of the file that `save` writes.

    Raises:
        ValueError: If the model cannot be read, or `vocabulary` has a piece twice or no `<unk>`.

    >>> tokenizer = SentencePieceTokenizer.train(["a man runs", "a dog runs"] * 9, vocab_size=20)
    >>> ids = tokenizer.tokenize(["a dog runs"])
    >>> tokenizer.detokenize(ids).numpy()
    array([b'a dog runs'], dtype=object)
    """

    def __init__(self, model, vocabulary=None):
        super().__init__()
        model = model if isinstance(model, bytes) else _read(model)
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(f"`model` is not a SentencePiece model: {error}") from None
        self.model = model
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self._processor = processor
        if vocabulary is None:
            special = [getattr(processor, name)() for name in SPECIAL]
            self._pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
        else:
            ids = _ids_of(self.vocabulary)
            special = [ids.get(piece, -1) for piece in SPECIAL.values()]
            self._pieces = list(self.vocabulary)
        special = [None if token_id == -1 else token_id for token_id in special]
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = special
        self.vocab_size = len(self._pieces)
        self._ops = tf_text.SentencepieceTokenizer(model, tf.int32 if vocabulary is None else tf.string)
        self._ops._model_resource = _NamedResource(model, None)
        if vocabulary is not None:
            self._prepare_lookups(ids)

    def _prepare_lookups(self, ids):
        """Creates the tables from pieces to ids and from ids to texts."""
        symbols = [piece for piece in ids if SYMBOL.fullmatch(piece)]
        self._symbols = "|".join(map(re.escape, symbols)) or None
        # A text that contains "<s>" must not get the id of bos.
        self._ids = {piece: i for piece, i in ids.items() if piece not in SPECIAL.values()}
        keys, values = tf.constant(list(self._ids)), tf.constant(list(self._ids.values()), tf.int32)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), default_value=self.unk_id
        )
        self._texts = [self._text_of(piece) for piece in self._pieces]

    def _text_of(self, piece):
        """Returns the bytes that `detokenize` writes for a piece."""
        if piece == SPECIAL["unk_id"]:
            return UNKNOWN_TEXT.encode()
        if self._processor.IsByte(self._processor.PieceToId(piece)):
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(BLANK, " ").encode()

    @classmethod
    def train(
        cls,
        sentences,
        vocab_size,
        *,
        model_type="unigram",
        character_coverage=0.9995,
        byte_fallback=False,
        symbols=(),
    ):
        """Trains a SentencePiece model on sentences.

        Args:
            sentences: Iterable of str. The character U+2585, which SentencePiece reserves, is read as a blank.
            vocab_size: Number of ids, the four special ids included. A small text gives fewer.
            model_type: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
            character_coverage: Share of the characters in the text that get an id, in (0, 1].
            byte_fallback: Whether other characters become their bytes, which takes 256 ids, instead of unk.
            symbols: Sequence of str, such as `["{name}"]`. Each has one id, in every text that contains it.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If an argument is out of range, the text is empty, or SentencePiece cannot make a vocabulary
                of this size from it.
        """
        if model_type not in ("unigram", "bpe"):
            raise ValueError(f'`model_type` must be "unigram" or "bpe". Received: model_type={model_type!r}.')
        sentences = [RESERVED.sub(" ", sentence).strip() for sentence in list_of_sentences(sentences)]
        if not any(sentences):
            raise ValueError(
                f"`sentences` must hold text. Received: {len(sentences)} sentences, all of them empty."
            )
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
                user_defined_symbols=list(symbols),
                hard_vocab_limit=False,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                minloglevel=2,
                # SentencePiece drops longer sentences without a word. Its default is 4192 bytes.
                max_sentence_length=max(
                    LEAST_LIMIT,
                    max(len(sentence.encode()) for sentence in sentences),
                ),
            )
        except RuntimeError as error:
            raise ValueError(
                "SentencePiece must be able to make a vocabulary of `vocab_size` ids from `sentences`. "
                f"Received: vocab_size={vocab_size}, {len(sentences)} sentences. "
                f"SentencePiece reports: {str(error).splitlines()[-1]}"
            ) from None
        return cls(model.getvalue())

    def tokenize(self, strings):
        """Converts strings to ids.

        Args:
            strings: Strings `(batch,)`, or a single string.

        Returns:
            int32 ragged `(batch, None)`; `(length,)` for a single string. No special id is added.
        """
        strings = valid_utf8(tf.convert_to_tensor(strings, tf.string))
        if self.vocabulary is None:
            return self._ops.tokenize(strings)
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        if self._symbols is None:
            return self._ids_of_pieces(self._ops.tokenize(strings))
        separated = tf.strings.regex_replace(strings, f"({self._symbols})", rf"{SEPARATOR}\1{SEPARATOR}")
        parts = tf.strings.split(separated, SEPARATOR)
        # Each part is a symbol or other text: one of the two is empty, so their pieces can be joined.
        is_symbol = tf.strings.regex_full_match(parts.flat_values, self._symbols)
        symbols = tf.ragged.boolean_mask(parts.flat_values[:, None], is_symbol[:, None])
        others = self._ops.tokenize(tf.where(is_symbol, "", parts.flat_values))
        ids = self._ids_of_pieces(tf.concat([symbols, others], axis=1))
        return parts.with_flat_values(ids).merge_dims(1, 2)

    def _ids_of_pieces(self, pieces):
        return pieces.with_flat_values(self._table.lookup(pieces.flat_values))

    def sampled(self, strings, alpha, seed):
        """Splits strings into subwords at random, which regularises training (Kudo, 2018; Provilkov et al., 2020).

        Args:
            strings: List of str.
            alpha: A unigram model draws a segmentation of probability p with a probability proportional to
                `p ** alpha`. A bpe model leaves out each merge with probability `alpha`.
            seed: Int in [0, 2**32). The same seed and strings give the same segmentations.

        Returns:
            A list of int32 arrays, the ids of each string.
        """
        sentencepiece.set_random_generator_seed(seed)
        # A single thread takes the seed. With several threads the draws would depend on their speed.
        rows = self._processor.encode(
            list(strings),
            out_type=int if self.vocabulary is None else str,
            enable_sampling=True,
            nbest_size=-1,
            alpha=alpha,
            num_threads=1,
        )
        if self.vocabulary is not None:
            rows = [[self._ids.get(piece, self.unk_id) for piece in row] for row in rows]
        return [np.array(row, "int32") for row in rows]

    def detokenize(self, ids):
        """Converts ids to strings.

        Args:
            ids: int `(batch, length)`, ragged or padded, or `(length,)`.

        Returns:
            Strings `(batch,)`, or a single string. Pad, bos and eos are removed; an id out of range is read as unk.
        """
        # Without `vocab_size` one id out of range would make the op fail for the whole batch.
        special = self.pad_id, self.bos_id, self.eos_id
        ids, single = as_ragged(ids, special, self.unk_id, self.vocab_size)
        if self.vocabulary is None:
            strings = self._ops.detokenize(ids)
        else:
            texts = ids.with_flat_values(tf.gather(tf.constant(self._texts), ids.flat_values))
            strings = tf.strings.strip(valid_utf8(tf.strings.reduce_join(texts, axis=-1)))
        return strings[0] if single else strings

    @property
    def content(self):
        """The bytes that `save` writes: the SentencePiece model, or JSON with the model and the vocabulary."""
        if self.vocabulary is None:
            return self.model
        model = base64.b64encode(self.model).decode()
        return json.dumps({"model": model, "vocabulary": self.vocabulary}).encode()

    @classmethod
    def load(cls, path):
        """Reads a tokenizer.

        Args:
            path: Path of a file that `save` wrote, or of a SentencePiece model.

        Raises:
            ValueError: If the file cannot be read or holds no tokenizer.
        """
        content = _read(path)
        if not content.startswith(b"{"):
            return cls(content)
        try:
            config = json.loads(content)
            model, vocabulary = base64.b64decode(config["model"], validate=True), config["vocabulary"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no tokenizer: {error!r:.500}") from None
        return cls(model, vocabulary)


def _read(path):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"`model` cannot be read: {error}") from None


def _ids_of(vocabulary):
    """Returns a dict from piece to id, or raises `ValueError` for a vocabulary that is not valid."""
    ids = {piece: i for i, piece in enumerate(vocabulary) if isinstance(piece, str)}
    if len(ids) < len(vocabulary) or SPECIAL["unk_id"] not in ids:
        raise ValueError(
            f"`vocabulary` must hold different str, and {SPECIAL['unk_id']!r} must be one of them. "
            f"Received: {len(vocabulary)} pieces, {len(ids)} different str."
        )
    return ids


class _NamedResource(sentencepiece_tokenizer._SentencepieceModelResource):
    """A SentencePiece model in TensorFlow's memory, with a name.

    Without a name, the model lives only as long as the kernel that loaded it. `tf.random.set_seed` removes all
    kernels, so a new seed would break every tokenizer. This class uses private names of tensorflow-text, so setup.cfg
    pins its version.
    """

    def _create_resource(self):
        name = hashlib.sha256(self._model).hexdigest()
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=name
        )
