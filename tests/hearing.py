"""A tiny model that writes what it hears, with Whisper's kinds of ids, and sounds for it."""

import keras
import numpy as np

from keras_transformer import layers, serving
from keras_transformer.decoding import NoRepeatNgram, SpeechIds
from keras_transformer.models import EncoderDecoder
from keras_transformer.text import BytePairTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

RATE, SECONDS, LONGEST = 4000, 0.5, 24
SPECIAL = ["<end>", "<start>", "<en>", "<ko>", "<transcribe>", "<translate>", "<nospeech>", "<notimes>"]
END, START, EN, KO, SAY, TRANSLATE, NO_SPEECH, NO_TIMES = range(256, 264)
IDS = SpeechIds(
    {"ko": KO, "en": EN}, {"transcribe": SAY, "translate": TRANSLATE}, no_timestamps_id=NO_TIMES,
    suppressed=(7, START, EN, KO, SAY, TRANSLATE, NO_SPEECH), suppressed_first=(END,), max_first_timestamp=5,
)  # fmt: skip
VOCAB = NO_TIMES + 1 + 26


def tokenizer():
    """Its padding is its end, as that of Whisper, and not the model's."""
    ends = {"eos_token": "<end>", "pad_token": "<end>"}
    return BytePairTokenizer([*BYTE_CHARACTERS, *SPECIAL], [], **ends, special_tokens=SPECIAL)


def model(seed=0, vocab=VOCAB):
    keras.utils.set_random_seed(seed)
    options = {
        "dropout": 0.0,
        "normalize_first": True,
        "kernel_initializer": keras.initializers.RandomNormal(0, 1.5),
    }
    source = layers.ConvolutionalSubsampling(8, positions=layers.LearnedPositions(25), dropout=0.0)
    source.build((None, None, 6))
    target = layers.Embeddings(vocab, 8, layers.LearnedPositions(40), dropout=0.0)
    made = EncoderDecoder(
        source, layers.Encoder(1, 2, 16, **options), target, layers.Decoder(1, 2, 16, **options),
        output=layers.TokenEmbedding(vocab, 8), pad_id=START, bos_id=START, eos_id=END,
    )  # fmt: skip
    for weight in (target.tokens.embeddings, made.output_embedding.embeddings):
        weight.assign(np.random.default_rng(seed).normal(size=weight.shape))
    return made


def transcriber(**changes):
    options = {
        "spectrogram": layers.LogMelSpectrogram(6, RATE, fft_length=100, sequence_stride=40),
        "ids": IDS,
        "window_seconds": SECONDS,
        "max_length": LONGEST,
        # Without it a model of random weights repeats one token.
        "constraints": [NoRepeatNgram(2)],
    }
    return serving.Transcriber(model(), tokenizer(), **{**options, **changes})


def sound(seconds, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, round(seconds * RATE)).astype("float32")
