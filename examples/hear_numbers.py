"""Trains a small speech model from nothing to write down spoken numbers, which the script makes by arithmetic.

    python examples/hear_numbers.py

A voice is the sum of the harmonics of its pitch. A vowel makes those near its formants louder (Peterson and Barney,
1952, "Control Methods Used in a Study of the Vowels", table II), a consonant is a hiss, a burst or a hum. Each speaker
has a pitch, a length of the mouth and a speed of their own, and there is noise. The script trains for minutes on two
cores, scores numbers that the model never heard, writes a SavedModel that takes WAV files and answers with words, asks
it in a process of its own, and draws what the model hears for each word.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import sources

import keras_transformer as kt
from keras_transformer.recordings import wav_of

RATE = 8000  # samples of a second
SECONDS = 2.2  # of a recording, at most
SPEAKERS, HELD_OUT = 6, 200  # for each number to train on; numbers that are not trained on
WIDTH, BANDS = 64, 40
EPOCHS = 16
LONGEST = 8  # tokens of a number
# Three formants in hertz, and how loud the voice and the hiss are.
PHONES = {
    **{"IY": (270, 2290, 3010, 1, 0), "IH": (390, 1990, 2550, 1, 0), "EH": (530, 1840, 2480, 1, 0)},
    **{"AA": (730, 1090, 2440, 1, 0), "AO": (570, 840, 2410, 1, 0), "AH": (640, 1190, 2390, 1, 0)},
    **{"UW": (300, 870, 2240, 1, 0), "ER": (490, 1350, 1690, 1, 0)},
    **{"N": (250, 1500, 2500, 0.4, 0), "R": (310, 1060, 1380, 0.5, 0), "L": (310, 1050, 2880, 0.5, 0)},
    **{"W": (290, 610, 2150, 0.5, 0), "V": (250, 1100, 2300, 0.3, 0.05), "Z": (250, 1600, 2500, 0.3, 0.3)},
    **{"F": (800, 1400, 2300, 0, 0.1), "TH": (1200, 1800, 2600, 0, 0.1), "S": (2800, 3300, 3700, 0, 0.6)},
    **{"H": (600, 1500, 2500, 0, 0.15), "T": (2200, 2900, 3500, 0, 0.5), "K": (1300, 1800, 2400, 0, 0.5)},
    **{"D": (300, 1700, 2600, 0.3, 0.15)},
}
STOPS = ("T", "K", "D")  # silence, then a burst
WORDS = {
    **{"zero": "Z IH R AO UW", "one": "W AH N", "two": "T UW", "three": "TH R IY", "four": "F AO R"},
    **{"five": "F AA IY V", "six": "S IH K S", "seven": "S EH V AH N", "eight": "EH IY T"},
    **{"nine": "N AA IY N", "ten": "T EH N", "eleven": "IH L EH V AH N", "twelve": "T W EH L V"},
    **{"thirteen": "TH ER T IY N", "fifteen": "F IH F T IY N", "eighteen": "EH IY T IY N"},
    **{"twenty": "T W EH N T IY", "thirty": "TH ER T IY", "fifty": "F IH F T IY"},
    **{"eighty": "EH IY T IY", "hundred": "H AH N D R AH D"},
}
for digit in ("four", "six", "seven", "nine"):
    WORDS[f"{digit}teen"] = f"{WORDS[digit]} T IY N"
    WORDS["forty" if digit == "four" else f"{digit}ty"] = f"{WORDS[digit]} T IY"
UNITS = [
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def words_of(number):
    """Returns a number below 1,000 in words, such as "four hundred twenty seven"."""
    hundreds, rest = divmod(number, 100)
    words = [UNITS[hundreds], "hundred"] if hundreds else []
    if rest >= len(UNITS):
        words.append(TENS[rest // 10 - 2])
        rest %= 10
    return " ".join(words + [UNITS[rest]] * bool(rest or not words))


def spoken(words, draw):
    """Speaks words with a voice that `draw`, a generator of NumPy, chooses. Returns float32 `(samples,)` in [-1, 1]."""
    pitch, mouth, speed = draw.uniform(90, 220), draw.uniform(0.9, 1.12), draw.uniform(0.85, 1.2)
    phones = [phone for word in words.split() for phone in WORDS[word].split()]
    # Points in time, with the sound at each: it glides from one to the next.
    times, sounds, now = [0.0], [(500, 1500, 2500, 0, 0)], draw.uniform(0.02, 0.15)
    for phone in phones:
        length = draw.uniform(0.055, 0.075) / speed
        sound = np.array(PHONES[phone]) * [mouth, mouth, mouth, 1, 1]
        still = sound * [1, 1, 1, 0, 0]
        steps = [(0.4, still), (0.5, sound), (0.7, sound), (1.0, still)] if phone in STOPS else None
        for share, each in steps or [(0.25, sound), (0.75, sound)]:
            times.append(now + share * length)
            sounds.append(each)
        now += length
    times.append(now + 0.03)
    sounds.append((500, 1500, 2500, 0, 0))
    clock = np.arange(int(min(now + 0.05, SECONDS) * RATE)) / RATE
    *formants, voice, hiss = (np.interp(clock, times, values) for values in np.transpose(sounds))
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.05 * np.sin(3 * clock + draw.uniform(0, 6)))) / RATE
    harmonics = np.arange(1, int(RATE / 2 / pitch / 1.1), dtype="float32")[:, None]
    formants = np.float32(formants)
    loud = sum(1 / (1 + ((harmonics * np.float32(pitch) - formant) / 90) ** 2) for formant in formants)
    # The powers of one wave are its harmonics.
    waves = np.cumprod(np.broadcast_to(np.exp(1j * phase).astype("complex64"), loud.shape), axis=0).imag
    sound = voice * np.sum(loud / harmonics**0.5 * waves, axis=0)
    # A hiss around a frequency: slow noise, moved there.
    noise = np.repeat(draw.normal(size=(3, len(clock) // 8 + 1)), 8, axis=1)[:, : len(clock)]
    for row, formant in zip(noise, formants, strict=True):
        sound += hiss * row * np.sin(2 * np.pi * np.cumsum(formant) / RATE)
    sound *= draw.uniform(0.2, 0.8) / np.abs(sound).max()
    return (sound + draw.normal(0, 0.005, len(sound))).clip(-1, 1).astype("float32")


def recorded(numbers, seed):
    """Returns a recording of each number, a list of arrays `(samples,)`."""
    draw = np.random.default_rng(seed)
    return [spoken(words_of(number), draw) for number in numbers]


def spectrograms(spectrogram, recordings):
    """Returns float32 `(recordings, frames, BANDS)`. Silence follows a short recording."""
    samples = round(SECONDS * RATE)
    padded = np.stack([np.pad(each, (0, samples - len(each))) for each in recordings])
    parts = [spectrogram(padded[start : start + 100]) for start in range(0, len(padded), 100)]
    return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])


def main(arguments=None):
    """Trains, scores, exports, asks the export and draws what the model hears."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="hearing", type=Path, help="new folder for model and picture")
    parser.add_argument("--speakers", default=SPEAKERS, type=int, help="recordings of each number")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help="passes over the recordings")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    keras.utils.set_random_seed(sources.SEED)

    numbers = np.random.default_rng(sources.SEED).permutation(1000)
    new, numbers = numbers[:HELD_OUT], np.repeat(numbers[HELD_OUT:], options.speakers)
    spectrogram = kt.layers.LogMelSpectrogram(BANDS, RATE, fft_length=256, sequence_stride=80)
    heard = spectrograms(spectrogram, recorded(numbers, sources.SEED))
    tokenizer = kt.text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(WORDS)])
    source = kt.layers.ConvolutionalSubsampling(
        WIDTH, strides=(2, 2), positions=kt.PositionalEncoding(), dropout=sources.DROPOUT
    )
    source.build((None, None, BANDS))
    model = sources.build(source, tokenizer, WIDTH)
    print(f"{len(heard):,} recordings, {model.count_params():,} parameters", flush=True)
    texts = [words_of(number) for number in numbers]
    sources.train(model, tokenizer, heard, texts, options.epochs)

    transcriber = kt.serving.Transcriber(
        model, tokenizer, max_length=LONGEST, spectrogram=spectrogram, window_seconds=SECONDS
    )
    recordings, texts = recorded(new, sources.SEED + 1), [words_of(number) for number in new]
    found = transcriber.transcribe(recordings, batch_size=50)
    print(f"{sources.exact(found, texts):.1%} of {HELD_OUT} new numbers are written without a fault.")

    version = transcriber.export(options.output)
    longest = max(range(HELD_OUT), key=lambda i: len(texts[i].split()))
    features = spectrograms(spectrogram, recordings[longest : longest + 1])
    tokens, weights = sources.alignment(model, tokenizer, features, transcriber.strategy, LONGEST)
    figure = kt.plots.speech_attention(features[0], weights, tokens, SECONDS)
    figure.savefig(options.output / "attention.png")
    paths = [options.output / f"number_{i}.wav" for i in range(4)]
    for path, recording in zip(paths, recordings, strict=False):
        path.write_bytes(wav_of(recording, RATE))
    sources.check_export(version, "wav", "wav", paths, found[:4])
    print(f"Exported to {version}, which says the same; its attention in {options.output / 'attention.png'}.")


if __name__ == "__main__":
    main()
