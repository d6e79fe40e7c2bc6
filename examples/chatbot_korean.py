"""Trains a small Transformer as a Korean chatbot: the source is the user's sentence, the target is the answer.

    python examples/chatbot_korean.py
    python examples/chatbot_korean.py --data ChatbotData.csv --output chatbot

It learns from the columns Q and A of a CSV file. data/talk.csv, the default, has 431 pairs and shows that it works; a
file with more is github.com/songys/Chatbot_data (11,823 pairs). The folder that it writes is a `Translator`:
`keras-transformer translate chatbot` answers line by line, `export` makes it a SavedModel.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras

import keras_transformer as kt
from keras_transformer.data import Batches, hold_out, read_table
from keras_transformer.decoding import NoRepeatNgram
from keras_transformer.schedules import CosineSchedule
from keras_transformer.serving import Translator
from keras_transformer.text import SentencePieceTokenizer
from keras_transformer.training import Adam, Progress, corpus_scores

DATA = Path(__file__).with_name("data") / "talk.csv"
HELD_OUT = 0.05  # share of the questions that are scored, and trained on in no other row
VOCAB_SIZE = 4000
MAX_LENGTH = 40  # tokens of a question or an answer
BATCH_TOKENS = 1024
EPOCHS = 15  # at least, and with few pairs as many as make this number of updates
UPDATES = 600
LEARNING_RATE = 2e-3
SIZES = {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.1}
SEED = 1
QUESTIONS = (
    "배고파",
    "오늘 너무 힘들었어",
    "주말에 뭐 하지?",
    "여자친구랑 헤어졌어",
    "좋아하는 사람이 생겼어",
    "넌 누구야?",
)


def train(pairs, held_out, epochs=None):
    """Trains a tokenizer and a model on pairs; returns them as a `Translator`, and the held-out perplexity."""
    tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], VOCAB_SIZE)
    limits = {"batch_tokens": BATCH_TOKENS, "max_length": MAX_LENGTH, "too_long": "truncate"}
    batches, held_out = (Batches(each, tokenizer, seed=SEED, **limits) for each in (pairs, held_out))
    model = kt.Transformer(tokenizer.vocab_size, normalize_first=True, **SIZES)
    print(
        f"{len(pairs):,} pairs, {tokenizer.vocab_size:,} subwords, {model.count_params():,} parameters",
        flush=True,
    )
    epochs = epochs or max(EPOCHS, -(-UPDATES // batches.steps))
    steps = epochs * batches.steps
    model.compile(
        Adam(CosineSchedule(LEARNING_RATE, steps, steps // 10), beta_2=0.98),
        kt.MaskedCrossentropy(label_smoothing=0.1),
        metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
    )
    history = model.fit(
        batches.dataset(epochs=epochs),
        epochs=epochs,
        steps_per_epoch=batches.steps,
        validation_data=held_out.dataset(epochs=1),
        shuffle=False,
        callbacks=[Progress(batches.steps, batches.tokens)],
        verbose=0,
    )
    chatbot = Translator(model, tokenizer, constraints=[NoRepeatNgram(2)])
    return chatbot, history.history["val_perplexity"][-1]


def main(arguments=None):
    """Trains, scores what was held out, answers and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=DATA, help="CSV with columns Q and A")
    parser.add_argument("--output", default="chatbot", type=Path, help="new folder for the chatbot")
    parser.add_argument("--epochs", type=int, help="passes over the pairs; by default more for few pairs")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    try:
        pairs, held_out = hold_out(read_table(options.data, "Q", "A"), HELD_OUT)
    except ValueError as error:
        parser.error(f"{error} Name a file with --data, such as that of github.com/songys/Chatbot_data.")
    keras.utils.set_random_seed(SEED)

    chatbot, perplexity = train(pairs, held_out, options.epochs)
    questions, answers = map(list, zip(*held_out, strict=True))
    scores = corpus_scores(chatbot.translate(questions), answers)
    print(
        f"{len(held_out)} pairs with new questions: perplexity {perplexity:.1f} a subword, BLEU {scores['bleu']:.1f}, "
        f"chrF {scores['chrf']:.1f}"
    )
    asked = [*QUESTIONS, *questions[:4]]
    for question, answer in zip(asked, chatbot.translate(asked), strict=True):
        print(f"  {question}  ->  {answer}")
    chatbot.save(options.output)
    print(f"Saved to {options.output}: ask it with `keras-transformer translate {options.output}`.")


if __name__ == "__main__":
    main()
