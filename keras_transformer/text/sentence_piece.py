"""A tokenizer of SentencePiece subwords."""

import base64
import io
import json
import math
import re

import numpy as np
import sentencepiece
import tensorflow as tf
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.checks import check, check_choice, warn
from keras_transformer.text.added_tokens import AddedToken, AddedTokens, as_added_tokens, join
from keras_transformer.text.base import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    as_ragged,
    bytes_of,
    list_of_sentences,
    valid_utf8,
)
from keras_transformer.text.character_map import check_character_map
from keras_transformer.text.sentence_piece_ops import BLANK, SPECIAL, normalizer_of, ops_of
from keras_transformer.untrusted import read_small

LONGEST_PIECE = 4096  # characters
# SentencePiece refuses a lower `max_sentence_length`.
LEAST_LIMIT = 10
# `train` warns where the text gives a smaller share of the ids that were asked for.
FEW = 0.5
# SentencePiece writes it for an unknown id.
UNKNOWN_TEXT = " \u2047 "
# Pieces that a text may contain literally, and that SentencePiece would split: T5's `<extra_id_0>`, Marian's `>>de<<`.
SYMBOL = re.compile(r"<extra_id_\d+>|>>.+<<")
# SentencePiece drops a sentence with its mark of unknown characters, and refuses a half of a surrogate pair.
RESERVED = re.compile("[\u2585\ud800-\udfff]")
ASCII = set(map(chr, range(ord("!"), ord("~") + 1)))
BLANKS = (None, "first", "always", "never")


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
        added_tokens: Further tokens that a text may contain, a sequence of str or of `AddedToken`. Each is among the
            pieces.
        blank: Where a blank is put before a text, or before the text after an added token. None: where the model says.
            "first": before a text that does not begin with one. "always": also after an added token. "never": nowhere.
            All but None are for a model that keeps the blanks of a text.

    Attributes:
        vocab_size: Number of ids.
        pad_id, unk_id, bos_id, eos_id: The special ids, int or None.
        content: The bytes of the file that `save` writes.

    Raises:
        ValueError: If the model cannot be read, `vocabulary` has a piece twice or no `<unk>`, `added_tokens` are not
            among the pieces, or `blank` does not fit the model.

    >>> tokenizer = SentencePieceTokenizer.train(["a man runs", "a dog runs"] * 9, vocab_size=20)
    >>> ids = tokenizer.tokenize(["a dog runs"])
    >>> tokenizer.detokenize(ids).numpy()
    array([b'a dog runs'], dtype=object)
    """

    def __init__(self, model, vocabulary=None, added_tokens=(), blank=None):
        super().__init__()
        check_choice(BLANKS, blank=blank)
        path, model = ("", model) if isinstance(model, bytes) else (f", the file {model},", _read(model))
        processor = sentencepiece.SentencePieceProcessor()
        try:
            proto = _checked(model)
            processor.LoadFromSerializedProto(proto.SerializeToString())
        except (DecodeError, RuntimeError, ValueError) as error:
            raise ValueError(f"`model`{path} is not a SentencePiece model: {error!s:.500}") from None
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
        rule = "The piece of unknown characters, `unk_piece` of the model, must be one of the pieces."
        check(self.unk_id is not None, rule, model=path or "bytes")
        self.vocab_size = len(self._pieces)
        self.added_tokens, self.blank = as_added_tokens(added_tokens), blank
        if short := [
            piece for piece in proto.pieces if piece.type == piece.CONTROL and len(piece.piece) == 1
        ]:
            # SentencePiece would fail at a text with this character.
            names = {piece.piece for piece in proto.pieces}
            for piece in short:
                while piece.piece in names:
                    piece.piece = f"<{piece.piece}>"
                names.add(piece.piece)
            processor.LoadFromSerializedProto(proto.SerializeToString())
        self._prepare_added_tokens(proto)
        prefixes = proto.normalizer_spec.add_dummy_prefix if blank is None else blank != "never"
        # Without a vocabulary, as SentencePiece's own operation.
        kept = vocabulary is None and not proto.normalizer_spec.remove_extra_whitespaces
        self._outer_blanks = (r"^ " if prefixes else r"^$") if kept else r"^\s+|\s+$"
        if blank is not None:
            trims = proto.normalizer_spec.remove_extra_whitespaces
            check(not trims, "`blank` must be None for a model that removes blanks.", blank=blank)
            proto.normalizer_spec.add_dummy_prefix = False
            processor.LoadFromSerializedProto(proto.SerializeToString())
        self._ops = ops_of(proto, tf.int32 if vocabulary is None else tf.string)
        if vocabulary is not None or self.added_tokens or blank is not None:
            self._texts = tf.constant([self._text_of(piece) for piece in self._pieces])
        if vocabulary is not None:
            # A text that contains "<s>" must not get the id of bos.
            self._ids = {piece: i for piece, i in ids.items() if piece not in SPECIAL.values()}
            keys, values = tf.constant(list(self._ids)), tf.constant(list(self._ids.values()), tf.int32)
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(keys, values), default_value=self.unk_id
            )

    def _prepare_added_tokens(self, proto):
        """Creates what finds the added tokens, and the symbols among the pieces."""
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        for token in self.added_tokens:
            rule = "`added_tokens` must be among the pieces."
            check(token.content in ids, rule, added_token=token.content)
        self._found = {token.content for token in self.added_tokens}
        symbols = [piece for piece in self.vocabulary or () if SYMBOL.fullmatch(piece)]
        symbols = [AddedToken(piece) for piece in symbols if piece not in self._found]
        self._dropped = {token.content for token in self.added_tokens if token.special}
        normalizes = bool(proto.normalizer_spec.precompiled_charsmap)
        self._normalizer = None
        if normalizes and any(token.normalized for token in self.added_tokens):
            self._normalizer = ops_of(normalizer_of(proto), tf.string)
        self._added = AddedTokens(
            [*self.added_tokens, *symbols], ids, None if self._normalizer is None else self._normalized
        )

    def _normalized(self, texts):
        """Normalises the characters of texts, and leaves blanks as they are."""
        texts = tf.strings.reduce_join(self._normalizer.tokenize(texts), axis=-1)
        return tf.strings.regex_replace(texts, BLANK, " ")

    def _text_of(self, piece):
        """Returns the bytes that `detokenize` writes for a piece."""
        if piece in self._dropped:
            return b""
        if piece in (SPECIAL["unk_id"], self._processor.IdToPiece(self._processor.unk_id())):
            return UNKNOWN_TEXT.encode()
        piece_id = self._processor.PieceToId(piece)
        if self._processor.IsByte(piece_id):
            return bytes([int(piece[1:-1], 16)])
        if self._processor.IsControl(piece_id) and piece not in self._found:
            return b""
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
            vocab_size: Number of ids, the four special ids included. A small text gives fewer; there is a warning if
                it gives less than half. The characters of ASCII that the text has must fit, 94 or fewer.
            model_type: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
            character_coverage: Share of the characters in the text that get an id, in (0, 1]. Those of ASCII, such as
                rare digits, get one in any case.
            byte_fallback: Whether other characters become their bytes, which takes 256 ids, instead of unk.
            symbols: Sequence of str, such as `["{first name}"]`. Each has one id, in every text that contains it.
                Blanks in a row are one, as in all texts of SentencePiece.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If an argument is out of range, the text is empty, or SentencePiece cannot make a vocabulary
                of this size from it.
        """
        check_choice(("unigram", "bpe"), model_type=model_type)
        sentences = [RESERVED.sub(" ", sentence).strip() for sentence in list_of_sentences(sentences)]
        if not any(sentences):
            raise ValueError(
                f"`sentences` must hold text. Received: {len(sentences)} sentences, all of them empty."
            )
        options = {
            # SentencePiece writes blanks so before it looks for symbols.
            "user_defined_symbols": [*dict.fromkeys(re.sub(" +", BLANK, symbol) for symbol in symbols)],
            "pad_id": PAD_ID,
            "unk_id": UNK_ID,
            "bos_id": BOS_ID,
            "eos_id": EOS_ID,
            "minloglevel": 2,
            # SentencePiece drops longer sentences without a word. Its default is 4192 bytes.
            "max_sentence_length": max(LEAST_LIMIT, max(len(sentence.encode()) for sentence in sentences)),
        }
        try:
            model = _trained(
                sentences,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=character_coverage,
                required_chars=_ascii_of(sentences, options) if character_coverage < 1 else "",
                byte_fallback=byte_fallback,
                hard_vocab_limit=False,
                **options,
            )
        except RuntimeError as error:
            raise ValueError(
                "SentencePiece must be able to make a vocabulary of `vocab_size` ids from `sentences`. "
                f"Received: vocab_size={vocab_size}, {len(sentences)} sentences. "
                f"SentencePiece reports: {str(error).splitlines()[-1]}"
            ) from None
        tokenizer = cls(model)
        if tokenizer.vocab_size < FEW * vocab_size:
            warn(
                f"`vocab_size` asks for {vocab_size:,} ids, but the text gives only {tokenizer.vocab_size:,}. "
                "Train on more text, or pass a smaller `vocab_size`."
            )
        return tokenizer

    def tokenize(self, strings):
        """Converts strings to ids.

        Args:
            strings: Strings `(batch,)`, or a single string.

        Returns:
            int32 ragged `(batch, None)`; `(length,)` for a single string. No special id is added.
        """
        strings = valid_utf8(tf.convert_to_tensor(strings, tf.string))
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        if not self._added and self.blank is None:
            return self._ids_of_pieces(self._ops.tokenize(strings))
        texts, ids, rows = self._parts(strings)
        pieces = self._ids_of_pieces(self._ops.tokenize(texts))
        return join(pieces, ids, rows, tf.size(strings, tf.int64))

    def _parts(self, strings):
        """Cuts texts at added tokens, as `AddedTokens.split`, and puts blanks before the parts that need one."""
        texts, ids, rows = self._added.split(strings)
        if self.blank in ("first", "always"):
            first = tf.concat([[True], rows[1:] != rows[:-1]], axis=0)[: tf.size(rows)]
            with_blank = tf.strings.regex_replace(texts, f"^([^ {BLANK}])", rf"{BLANK}\1")
            texts = tf.where(first | (self.blank == "always"), with_blank, texts)
        return texts, ids, rows

    @property
    def hides_characters(self):
        return {"added_tokens": self.added_tokens or "symbols"} if self._added else {}

    def locate(self, texts, characters):
        parts, _, _ = self._parts(texts)
        pieces, starts, ends = self._ops.tokenize_with_offsets(parts)
        # A blank that was put before a text is none of its characters.
        added = tf.gather(tf.strings.length(parts) - tf.strings.length(texts), pieces.value_rowids())
        starts, ends = (
            pieces.with_flat_values(tf.maximum(0, tf.cast(each.flat_values, tf.int32) - added))
            for each in (starts, ends)
        )
        return self._ids_of_pieces(pieces), bytes_of(characters), starts, ends

    def _ids_of_pieces(self, pieces):
        if self.vocabulary is None:
            return pieces
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
        texts, ids, rows = self._parts(valid_utf8(tf.convert_to_tensor(list(strings), tf.string)))
        sentencepiece.set_random_generator_seed(seed)
        # A single thread takes the seed. With several threads the draws would depend on their speed.
        pieces = self._processor.encode(
            [text.decode() for text in texts.numpy()],
            out_type=int if self.vocabulary is None else str,
            enable_sampling=True,
            nbest_size=-1,
            alpha=alpha,
            num_threads=1,
        )
        if self.vocabulary is not None:
            pieces = [[self._ids.get(piece, self.unk_id) for piece in part] for part in pieces]
        sampled = [[] for _ in strings]
        for part, token_id, row in zip(pieces, ids.numpy(), rows.numpy(), strict=True):
            sampled[row] += part if token_id < 0 else [token_id]
        return [np.array(row, "int32") for row in sampled]

    def detokenize(self, ids):
        """Converts ids to strings.

        Args:
            ids: int `(batch, length)`, ragged or padded, or `(length,)`.

        Returns:
            Strings `(batch,)`, or a single string. Pad, bos, eos and added tokens that are special are removed; an id
            out of range is read as unk.
        """
        # Without `vocab_size` one id out of range would make the op fail for the whole batch.
        special = self.pad_id, self.bos_id, self.eos_id
        ids, single = as_ragged(ids, special, self.unk_id, self.vocab_size)
        if self.vocabulary is None and not self.added_tokens and self.blank is None:
            strings = self._ops.detokenize(ids)
        else:
            texts = ids.with_flat_values(tf.gather(self._texts, ids.flat_values))
            strings = valid_utf8(tf.strings.reduce_join(texts, axis=-1))
            strings = tf.strings.regex_replace(strings, self._outer_blanks, "")
        return strings[0] if single else strings

    def written(self):
        special = {self.pad_id, self.bos_id, self.eos_id}
        return [b"" if i in special else self._text_of(piece) for i, piece in enumerate(self._pieces)]

    @property
    def content(self):
        """The bytes that `save` writes: the SentencePiece model, or JSON with the model and the other arguments."""
        if self.vocabulary is None and not self.added_tokens and self.blank is None:
            return self.model
        config = {"model": base64.b64encode(self.model).decode(), "vocabulary": self.vocabulary}
        options = {"added_tokens": self.added_tokens, "blank": self.blank}
        return json.dumps(config | {name: value for name, value in options.items() if value}).encode()

    @classmethod
    def load(cls, path):
        """Reads a tokenizer.

        Args:
            path: Path of a file that `save` wrote, or of a SentencePiece model.

        Raises:
            ValueError: If the file cannot be read or holds no tokenizer.
        """
        content = _read(path)
        try:
            if not content.startswith(b"{"):
                return cls(content)
            config = json.loads(content)
            config["model"] = base64.b64decode(config["model"], validate=True)
            return cls(**config)
        except ValueError as error:
            raise ValueError(f"{path} holds no tokenizer: {error!s:.500}") from None
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no tokenizer: {error!r:.500}") from None


def _checked(model):
    """Reads the message of a SentencePiece model. Raises `ValueError` for values that native code does not check."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    # A trie of pieces ends the process at a NUL, and at a piece of 100 kB, by recursion. BPE has one of symbols only.
    in_trie = proto.trainer_spec.model_type != proto.trainer_spec.BPE
    wrong = [
        piece
        for piece in proto.pieces
        if not (0 < len(piece.piece) <= LONGEST_PIECE and math.isfinite(piece.score))
        or ("\0" in piece.piece and (in_trie or piece.type == piece.USER_DEFINED))
    ]
    rule = f"Each piece must have 1 to {LONGEST_PIECE} characters without NUL, and a finite score."
    check(not wrong, rule, piece=wrong[:1])
    check_character_map(proto.normalizer_spec.precompiled_charsmap)
    check_character_map(proto.denormalizer_spec.precompiled_charsmap)
    return proto


def _read(path):
    try:
        return read_small(path)
    except (OSError, ValueError) as error:
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


def _trained(sentences, **options):
    """Returns the bytes of a SentencePiece model that is trained on sentences."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    return model.getvalue()


def _ascii_of(sentences, options):
    """Returns the ASCII characters that SentencePiece finds in sentences, as it normalises them, without the symbols.

    SentencePiece itself says which they are: with a required character that it does not find, it ends the process.
    """
    every = {"model_type": "char", "character_coverage": 1.0, "use_all_vocab": True}
    proto = sentencepiece_model_pb2.ModelProto.FromString(_trained(sentences, **every, **options))
    normal = [piece.piece for piece in proto.pieces if piece.type == piece.NORMAL]
    return "".join(sorted(ASCII.intersection(normal)))
