"""Models made of the layers."""

# A saved model names its loss, metrics, optimizer and schedule: who imports the models can load it.
from keras_transformer import losses, metrics, optimizers, schedules  # noqa: F401
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.heads import (
    ClassificationHead,
    Head,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    ProjectedPooler,
    SpanHead,
    TaggingHead,
)
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_transformer.models.t5 import T5
from keras_transformer.models.text_groups import TextGroups
from keras_transformer.models.transformer import EncoderDecoder, Transformer
from keras_transformer.models.vision_transformer import VisionTransformer

__all__ = [
    "T5",
    "ClassificationHead",
    "EncoderDecoder",
    "EncoderModel",
    "Ensemble",
    "Head",
    "LanguageModel",
    "MaskedLanguageHead",
    "MultipleChoiceHead",
    "Pooler",
    "ProjectedPooler",
    "RecurrentSeq2Seq",
    "SpanHead",
    "TaggingHead",
    "TextGroups",
    "Transformer",
    "VisionTransformer",
]
