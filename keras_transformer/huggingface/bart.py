"""BART: Lewis et al., 2020, "BART: Denoising Sequence-to-Sequence Pre-training"."""

from keras_transformer.huggingface.byte_pair import ROBERTA_BYTE_PAIR
from keras_transformer.huggingface.seq2seq import Seq2SeqNames, seq2seq_family

FAMILY = seq2seq_family(Seq2SeqNames("bart", "BartForConditionalGeneration"), ROBERTA_BYTE_PAIR)
