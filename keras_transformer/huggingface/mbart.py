"""mBART: Liu et al., 2020, "Multilingual Denoising Pre-training for Neural Machine Translation"."""

from keras_transformer.huggingface.sentence_piece import MULTILINGUAL_SENTENCE_PIECE
from keras_transformer.huggingface.seq2seq import Seq2SeqFamily

FAMILY = Seq2SeqFamily(
    "mbart", ("MBartForConditionalGeneration",), MULTILINGUAL_SENTENCE_PIECE, normalize_first=True
)
