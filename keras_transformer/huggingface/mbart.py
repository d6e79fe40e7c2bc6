"""mBART: Liu et al., 2020, "Multilingual Denoising Pre-training for Neural Machine Translation"."""

from keras_transformer.huggingface.seq2seq import Seq2SeqNames, seq2seq_family

# The source begins or ends with its language's id, and the target begins with it: a tokenizer knows no languages.
FAMILY = seq2seq_family(Seq2SeqNames("mbart", "MBartForConditionalGeneration", normalize_first=True), None)
