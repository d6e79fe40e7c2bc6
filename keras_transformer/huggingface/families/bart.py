"""BART: Lewis et al., 2020, "BART: Denoising Sequence-to-Sequence Pre-training"."""

from keras_transformer.huggingface.families.seq2seq import Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.byte_pair import ROBERTA_BYTE_PAIR

FAMILY = Seq2SeqFamily("bart", ("BartForConditionalGeneration",), ROBERTA_BYTE_PAIR)
