"""mBART: Liu et al., 2020, "Multilingual Denoising Pre-training for Neural Machine Translation"."""

from keras_transformer.huggingface.families.seq2seq import Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import MULTILINGUAL_SENTENCE_PIECE

FAMILY = Seq2SeqFamily(
    "mbart", ("MBartForConditionalGeneration",), MULTILINGUAL_SENTENCE_PIECE, normalize_first=True
)
