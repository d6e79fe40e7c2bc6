"""A functional model of the library's layers reads Korean numbers: 삼천오 is 3005.

    python examples/functional_model.py

An encoder and a decoder, stacked by hand around two embeddings. `pad_id` in the embeddings is all it takes
for padding to be masked everywhere: the mask travels with the tensors, as everywhere in Keras.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np

import keras_transformer as kt

NUMBERS = 10_000_000  # the numbers below this one
TRAIN = 20_000
HELD_OUT = 1_000
EPOCHS = 5
SEED = 1

PAD, BOS, EOS = 0, 2, 3
DIGITS = "영일이삼사오육칠팔구"
UNITS = ("", "십", "백", "천")
SOURCE = {character: i for i, character in enumerate(DIGITS + "십백천만", start=4)}
TARGET = {character: i for i, character in enumerate("0123456789", start=4)}
SOURCE_LENGTH = 14  # 칠백칠십칠만칠천칠백칠십칠, and eos
TARGET_LENGTH = 8


def korean(number):
    """Spells a number below 100,000,000 in Sino-Korean; a one before a unit is left out.

    >>> korean(3005), korean(110_000), korean(0)
    ('삼천오', '십일만', '영')
    """
    if number >= 10_000:
        thousands, rest = divmod(number, 10_000)
        return (korean(thousands) if thousands > 1 else "") + "만" + (korean(rest) if rest else "")
    spelt = [
        (DIGITS[int(digit)] if digit != "1" or not unit else "") + unit
        for digit, unit in zip(str(number)[::-1], UNITS, strict=False)
        if digit != "0"
    ]
    return "".join(reversed(spelt)) or DIGITS[0]


def ids(texts, table, length):
    """Texts to int32 `(batch, length)`: an id for each character, eos, padding."""
    rows = np.full((len(texts), length), PAD, "int32")
    for row, text in zip(rows, texts, strict=True):
        row[: len(text) + 1] = [table[character] for character in text] + [EOS]
    return rows


def examples(numbers):
    """The model's inputs and targets for some numbers."""
    source = ids([korean(number) for number in numbers], SOURCE, SOURCE_LENGTH)
    target = ids([str(number) for number in numbers], TARGET, TARGET_LENGTH)
    shifted = np.roll(target, 1, axis=1)
    shifted[:, 0] = BOS
    shifted[shifted == EOS] = PAD  # eos is predicted, never read
    return {"source": source, "target": shifted}, target


def build(d_model=64, num_layers=2, num_heads=4, d_ff=128, dropout=0.0):
    """The model: two inputs of ids, logits of the target's characters."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    stack = {"num_heads": num_heads, "d_ff": d_ff, "dropout": dropout, "normalize_first": True}

    x = kt.TokenEmbedding(4 + len(SOURCE), d_model, pad_id=PAD)(source)
    x = kt.PositionalEncoding()(x)
    memory = kt.Encoder(num_layers, **stack)(x)

    x = kt.TokenEmbedding(4 + len(TARGET), d_model, pad_id=PAD)(target)
    x = kt.PositionalEncoding()(x)
    x = kt.Decoder(num_layers, **stack)(x, memory)
    logits = keras.layers.Dense(4 + len(TARGET), dtype="float32", name="logits")(x)
    return keras.Model({"source": source, "target": target}, logits, name="korean_numbers")


def read(model, texts):
    """Reads Korean numbers, a digit at a time: the likeliest, given those before it. Returns a list of str."""
    source = ids(texts, SOURCE, SOURCE_LENGTH)
    target = np.full((len(texts), TARGET_LENGTH + 1), PAD, "int32")
    target[:, 0] = BOS
    for i in range(TARGET_LENGTH):
        logits = model.predict({"source": source, "target": target[:, :-1]}, batch_size=500, verbose=0)
        target[:, i + 1] = logits[:, i].argmax(axis=-1)
    digits = {i: character for character, i in TARGET.items()}
    rows = (row[1 : 1 + list(row[1:] == EOS).index(True)] if EOS in row else row[1:] for row in target)
    return ["".join(digits.get(i, "?") for i in row) for row in rows]


def train(train_numbers, epochs, **sizes):
    """Trains a model on numbers and returns it."""
    model = build(**sizes)
    schedule = kt.WarmupSchedule.from_peak(2e-3, warmup_steps=200, d_model=64)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98),
        loss=kt.MaskedCrossentropy(pad_id=PAD),
        metrics=[kt.MaskedAccuracy(pad_id=PAD)],
    )
    model.fit(*examples(train_numbers), batch_size=128, epochs=epochs, verbose=2)
    return model


def main(arguments=None):
    """Trains, reads held-out numbers, saves, loads and reads them again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the numbers")
    epochs = parser.parse_args(arguments).epochs
    keras.utils.set_random_seed(SEED)
    numbers = np.random.default_rng(SEED).choice(NUMBERS, TRAIN + HELD_OUT, replace=False).tolist()
    held_out = numbers[TRAIN:]
    texts = [korean(number) for number in held_out]

    model = train(numbers[:TRAIN], epochs)
    answers = read(model, texts)
    for text, answer in zip(texts[:5], answers, strict=False):
        print(f"{text} = {answer}")
    right = np.mean([answer == str(number) for answer, number in zip(answers, held_out, strict=True)])
    print(f"{right:.1%} of {len(held_out)} numbers that it never saw are right.")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "korean_numbers.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    assert read(loaded, texts[:100]) == answers[:100], "a loaded model must answer as the saved one did"
    print("Saved, loaded, and answered alike.")


if __name__ == "__main__":
    main()
