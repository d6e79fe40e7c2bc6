"""SentencePiece subwords."""

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

from keras_transformer.text.base import BOS_ID, EOS_ID, PAD_ID, UNK_ID, as_ragged, valid_utf8

BLANK = "\u2581"
SPECIAL = {"pad_id": "<pad>", "unk_id": "<unk>", "bos_id": "<s>", "eos_id": "</s>"}
UNKNOWN_TEXT = " \u2047 "  # as SentencePiece reads an unknown id
# Pieces of a vocabulary that a text spells out: T5's sentinels, Marian's names of languages.
SYMBOL = re.compile(r"<extra_id_\d+>|>>.+<<")
MARK = "\x01"


class SentencePieceTokenizer(tf.Module):
    """Subwords of a SentencePiece model (Kudo and Richardson, 2018), as TensorFlow ops.

    Ids 0 pad, 1 unk, 2 bos, 3 eos where it was trained here, else the model's own: `pad_id`, `unk_id`, `bos_id` and
    `eos_id`, None for one that it has not. Neither direction adds any of them; `detokenize` drops all but unk.

    Args:
        model: The model, its bytes or the path of its file.
        vocabulary: The pieces in the order of their ids, where these are not the model's: a list of str. A piece of
            the model that it has not is unk. It may hold `<pad>`, `<s>` and `</s>`, whose ids are then the special
            ones, and `<extra_id_0>` or `>>de<<` and the like, which a text spells out. What else the model does not
            make is for `detokenize`.

    Raises:
        ValueError: If the model cannot be read, or the vocabulary has a piece twice or no `<unk>`.
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
        """What finds the vocabulary's ids in a text, and its texts by ids."""
        spelled = [piece for piece in ids if SYMBOL.fullmatch(piece)]
        self._symbols = "|".join(map(re.escape, spelled)) or None
        # No text becomes a special id, whatever it spells.
        self._ids = {piece: i for piece, i in ids.items() if piece not in SPECIAL.values()}
        keys, values = tf.constant(list(self._ids)), tf.constant(list(self._ids.values()), tf.int32)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), default_value=self.unk_id
        )
        self._texts = [self._text_of(piece) for piece in self._pieces]

    def _text_of(self, piece):
        """What a piece of the vocabulary stands for in a text, bytes."""
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
    ):
        """Learns subwords from sentences.

        Args:
            sentences: Iterable of str.
            vocab_size: Number of ids, the four special ones included; little text gets fewer.
            model_type: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
            character_coverage: Share of the text's characters that get an id.
            byte_fallback: Whether to spell the others as bytes, at 256 ids, instead of as unk.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If an argument is out of range, or the text does not yield the vocabulary.
        """
        if model_type not in ("unigram", "bpe"):
            raise ValueError(f'`model_type` must be "unigram" or "bpe". Received: model_type={model_type!r}.')
        sentences = [sentence.strip() for sentence in sentences]
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
                hard_vocab_limit=False,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"`vocab_size` or the text does not suit the tokenizer. Received: vocab_size={vocab_size}, "
                f"{len(sentences)} sentences. SentencePiece says: {str(error).splitlines()[-1]}"
            ) from None
        return cls(model.getvalue())

    def tokenize(self, strings):
        """Strings `(batch,)` to int32 ragged ids `(batch, None)`; a single string to `(length,)`."""
        strings = valid_utf8(tf.convert_to_tensor(strings, tf.string))
        if self.vocabulary is None:
            return self._ops.tokenize(strings)
        if strings.shape.rank == 0:
            return self.tokenize(strings[None])[0]
        if self._symbols is None:
            return self._looked_up(self._ops.tokenize(strings))
        marked = tf.strings.regex_replace(strings, f"({self._symbols})", rf"{MARK}\1{MARK}")
        parts = tf.strings.split(marked, MARK)
        symbols = tf.strings.regex_full_match(parts.flat_values, self._symbols)
        own = tf.ragged.boolean_mask(parts.flat_values[:, None], symbols[:, None])
        others = self._ops.tokenize(tf.where(symbols, "", parts.flat_values))
        return parts.with_flat_values(self._looked_up(tf.concat([own, others], axis=1))).merge_dims(1, 2)

    def _looked_up(self, pieces):
        """Pieces as the vocabulary's ids, ragged both."""
        return pieces.with_flat_values(self._table.lookup(pieces.flat_values))

    def sampled(self, strings, alpha, seed):
        """Segmentations drawn at random, which make a model hardier (Kudo, 2018; Provilkov et al., 2020).

        Args:
            strings: List of str.
            alpha: A unigram model draws a segmentation of probability p in proportion to `p ** alpha`; a bpe model
                leaves out each merge with probability `alpha`.
            seed: Non-negative int below 2**32; the same seed and strings give the same segmentations.

        Returns:
            A list of int32 arrays.
        """
        sentencepiece.set_random_generator_seed(seed)
        # One thread, which is born with the seed: with several the draws would follow their pace.
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
        """Ids `(batch, length)`, ragged or padded, to strings `(batch,)`; an id out of range reads as unk."""
        ids, single = as_ragged(ids, (self.pad_id, self.bos_id, self.eos_id), self.unk_id)
        # The op fails the whole batch for one id past its vocabulary.
        inside = (ids >= 0) & (ids < self.vocab_size)
        ids = tf.where(inside, ids, tf.ones_like(ids) * self.unk_id)
        if self.vocabulary is None:
            strings = self._ops.detokenize(ids)
        else:
            texts = ids.with_flat_values(tf.gather(tf.constant(self._texts), ids.flat_values))
            strings = tf.strings.strip(valid_utf8(tf.strings.reduce_join(texts, axis=-1)))
        return strings[0] if single else strings

    def pieces(self, ids):
        """The text of each id, a list of str: for people to look at."""
        return [self._pieces[i] for i in ids]

    @property
    def content(self):
        """What `save` writes: the SentencePiece model itself, or JSON of it and the vocabulary."""
        if self.vocabulary is None:
            return self.model
        model = base64.b64encode(self.model).decode()
        return json.dumps({"model": model, "vocabulary": self.vocabulary}).encode()

    def save(self, path):
        """Writes the tokenizer to a file: a SentencePiece model, unless it has a vocabulary of its own."""
        Path(path).write_bytes(self.content)

    @classmethod
    def load(cls, path):
        """A tokenizer as `save` wrote it, or a SentencePiece model."""
        content = _read(path)
        if not content.startswith(b"{"):
            return cls(content)
        try:
            described = json.loads(content)
            model, vocabulary = base64.b64decode(described["model"], validate=True), described["vocabulary"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no tokenizer: {error!r}") from None
        return cls(model, vocabulary)


def _read(path):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"`model` cannot be read: {error}") from None


def _ids_of(vocabulary):
    """The id of each piece, if they are pieces."""
    ids = {piece: i for i, piece in enumerate(vocabulary) if isinstance(piece, str)}
    if len(ids) < len(vocabulary) or SPECIAL["unk_id"] not in ids:
        raise ValueError(
            f"`vocabulary` must be of different str, {SPECIAL['unk_id']!r} among them. "
            f"Received: {len(vocabulary)} pieces, {len(ids)} different str."
        )
    return ids


class _NamedResource(sentencepiece_tokenizer._SentencepieceModelResource):
    """The model in TensorFlow's memory, under a name of its own.

    Without a name it lives as long as the kernel that made it, and `tf.random.set_seed` clears all kernels: a new
    seed would break every tokenizer. setup.cfg bounds the version whose private names are used here.
    """

    def _create_resource(self):
        name = hashlib.sha256(self._model).hexdigest()
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=name
        )
