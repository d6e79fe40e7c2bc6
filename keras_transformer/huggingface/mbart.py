"""mBART: Liu et al., 2020, "Multilingual Denoising Pre-training for Neural Machine Translation"."""

from keras_transformer.huggingface.sentence_piece import MULTILINGUAL_SENTENCE_PIECE
from keras_transformer.huggingface.seq2seq import Seq2SeqNames, seq2seq_family

FAMILY = seq2seq_family(
    Seq2SeqNames("mbart", "MBartForConditionalGeneration", normalize_first=True), MULTILINGUAL_SENTENCE_PIECE
)
