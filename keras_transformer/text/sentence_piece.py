"""SentencePiece subwords."""

import hashlib
import io

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops import sentencepiece_tokenizer

from keras_transformer.text.base import BOS_ID, EOS_ID, PAD_ID, UNK_ID, as_ragged, valid_utf8


class SentencePieceTokenizer(tf.Module):
    """Subwords of a SentencePiece model (Kudo and Richardson, 2018), as TensorFlow ops.

    Ids 0 pad, 1 unk, 2 bos, 3 eos. Neither direction adds bos or eos; `detokenize` drops them.

    Args:
        model: The model, its bytes or the path of its file.

    Raises:
        ValueError: If the model cannot be read or its special ids are others.
    """

    def __init__(self, model):
        super().__init__()
        if not isinstance(model, bytes):
            try:
                with open(model, "rb") as file:
                    model = file.read()
            except OSError as error:
                raise ValueError(f"`model` cannot be read: {error}") from None
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(f"`model` is not a SentencePiece model: {error}") from None
        found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if found != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise ValueError(
                "`model` must have the ids 0 pad, 1 unk, 2 bos, 3 eos. "
                "Received: {} pad, {} unk, {} bos, {} eos.".format(*found)
            )
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = found
        self.model = model
        self._processor = processor
        self.vocab_size = processor.GetPieceSize()
        self._pieces = [processor.IdToPiece(i) for i in range(self.vocab_size)]
        self._ops = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
        self._ops._model_resource = _NamedResource(model, None)

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
        return self._ops.tokenize(valid_utf8(tf.convert_to_tensor(strings, tf.string)))

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
            list(strings), enable_sampling=True, nbest_size=-1, alpha=alpha, num_threads=1
        )
        return [np.array(row, "int32") for row in rows]

    def detokenize(self, ids):
        """Ids `(batch, length)`, ragged or padded, to strings `(batch,)`; an id out of range reads as unk."""
        ids, single = as_ragged(ids)
        # The op fails the whole batch for one id past its vocabulary.
        inside = (ids >= 0) & (ids < self.vocab_size)
        strings = self._ops.detokenize(tf.where(inside, ids, tf.ones_like(ids) * UNK_ID))
        return strings[0] if single else strings

    def pieces(self, ids):
        """The text of each id, a list of str: for people to look at."""
        return [self._pieces[i] for i in ids]

    def save(self, path):
        """Writes the SentencePiece model to a file."""
        with open(path, "wb") as file:
            file.write(self.model)

    @classmethod
    def load(cls, path):
        """A tokenizer as `save` wrote it."""
        return cls(path)


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
