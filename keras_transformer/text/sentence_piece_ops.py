"""TensorFlow's operations of a SentencePiece model."""

import hashlib

import tensorflow_text as tf_text
from sentencepiece import sentencepiece_model_pb2
from tensorflow_text.python.ops import sentencepiece_tokenizer

# SentencePiece writes it instead of a space.
BLANK = "\u2581"
SPECIAL = {"pad_id": "<pad>", "unk_id": "<unk>", "bos_id": "<s>", "eos_id": "</s>"}


def ops_of(proto, dtype):
    """Returns TensorFlow's operations of a model, whose pieces are strings or ids."""
    model = proto.SerializeToString()
    ops = tf_text.SentencepieceTokenizer(model, dtype)
    ops._model_resource = _NamedResource(model, None)
    return ops


def normalizer_of(proto):
    """Returns a model that knows only the blank: the rest of a text is unknown to it, and comes out normalised."""
    model = sentencepiece_model_pb2.ModelProto()
    model.normalizer_spec.CopyFrom(proto.normalizer_spec)
    model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
    model.pieces.add(piece=SPECIAL["unk_id"], type=2)
    model.pieces.add(piece=BLANK)
    return model


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
