"""BART: Lewis et al., 2020, "BART: Denoising Sequence-to-Sequence Pre-training"."""

from keras_transformer.huggingface.byte_pair import ROBERTA_BYTE_PAIR
from keras_transformer.huggingface.seq2seq import Seq2SeqFamily

FAMILY = Seq2SeqFamily("bart", ("BartForConditionalGeneration",), ROBERTA_BYTE_PAIR)
