"""Compares the Transformer with the recurrent model that it replaced, on Multi30k: BLEU and seconds an epoch.

usage: recurrent.py FOLDER --data MULTI30K [--epochs 12] [--pairs 29000] [--precision float32]

Both models read the same batches of one vocabulary, with one loss and optimizer. They take turns epoch by epoch in one
process. FOLDER holds both models after each epoch. The same command goes on after a stop, also with more `--epochs`. At
the end each model is scored as it was after the epoch of its best validation perplexity, greedily and with a beam of 4,
and once more for each quarter of the test set by the number of words. Draws docs/images/recurrent.png.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

MODELS = ("Transformer", "RecurrentSeq2Seq")


def main():
    """Trains both to the last epoch, scores them and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with train, val and test_2016_flickr, each .en.gz and .de.gz",
    )
    parser.add_argument(
        "--pairs", type=int, help="train on so many pairs only, the first ones, and test on the first hundred"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=2500)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup-steps", type=int, default=1000)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--layers", type=int, default=3, help="of each side of the Transformer")
    parser.add_argument("--recurrent-layers", type=int, default=2, help="of each side of the other")
    parser.add_argument(
        "--d-model", type=int, default=256, help="of the Transformer; d_ff is four times that"
    )
    parser.add_argument(
        "--recurrent-d-model", type=int, default=384, help="of the other: nearly as many parameters"
    )
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument(
        "--picture", default=Path(__file__).parents[1] / "docs" / "images" / "recurrent.png", type=Path
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept_settings(options)
    train, val, test = (pairs_of(options, name) for name in ("train", "val", "test_2016_flickr"))
    if options.pairs:
        train, val, test = train[: options.pairs], val[:100], test[:100]
    tokenizer = tokenizer_of(options, train)
    histories = trained(options, tokenizer, train, val)
    results = [scored(options, name, tokenizer, test, histories[name]) for name in MODELS]
    (options.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print("| | parameters | s an epoch | best epoch | val perplexity | BLEU greedy (s) | BLEU beam 4 (s) |")
    print("| --- " * 7 + "|")
    for row in results:
        cells = [f"{row[k]['bleu']:.2f} ({row[k]['seconds']:.0f})" for k in ("greedy", "beam 4")]
        print(
            f"| {row['model']} | {row['parameters']:,} | {row['seconds']:.1f} | {row['epoch']} of {row['epochs']} | "
            f"{row['val_perplexity']:.2f} | {cells[0]} | {cells[1]} |"
        )
    quarters = by_length(options, test)
    print("\n| words of the English sentence |", " | ".join(quarters[MODELS[0]]), "|")
    print("| --- " * (1 + len(quarters[MODELS[0]])) + "|")
    for name in MODELS:
        print(f"| {name} |", " | ".join(f"{bleu:.1f}" for bleu in quarters[name].values()), "|")
    draw(histories, quarters, options.picture)


def kept_settings(options):
    """Stores the settings of a new run, and refuses to resume a run with other settings."""
    own = {
        name: str(value)
        for name, value in vars(options).items()
        if name not in ("folder", "epochs", "data", "picture")
    }
    path = options.folder / "settings.json"
    if path.exists() and json.loads(path.read_text()) != own:
        raise SystemExit(f"{options.folder} was started with other settings: {path.read_text()}")
    path.write_text(json.dumps(own) + "\n")


def pairs_of(options, name):
    """Reads the English and German sentences of one part of the data."""
    from keras_transformer.data import read_parallel

    return read_parallel(*(options.data / f"{name}.{language}.gz" for language in ("en", "de")))


def tokenizer_of(options, pairs):
    """Trains or loads one vocabulary for both languages and both models."""
    from keras_transformer.text import SentencePieceTokenizer

    path = options.folder / "tokenizer.model"
    if not path.exists():
        sentences = [sentence for pair in pairs for sentence in pair]
        SentencePieceTokenizer.train(sentences, options.vocab_size).save(path)
    return SentencePieceTokenizer.load(path)


def compiled(options, name, vocab_size):
    """Makes and compiles a model."""
    import keras

    import keras_transformer as kt
    from keras_transformer.models import RecurrentSeq2Seq
    from keras_transformer.schedules import InverseSquareRootSchedule
    from keras_transformer.training import Adam

    keras.utils.set_random_seed(1)
    common = {"dropout": options.dropout, "dtype": options.precision}
    if name == "Transformer":
        sizes = {
            "num_layers": options.layers,
            "d_model": options.d_model,
            "num_heads": options.d_model // 64 or 1,
        }
        model = kt.Transformer(vocab_size, d_ff=4 * options.d_model, **sizes, **common)
    else:
        sizes = {"num_layers": options.recurrent_layers, "d_model": options.recurrent_d_model}
        model = RecurrentSeq2Seq(vocab_size, **sizes, **common)
    schedule = InverseSquareRootSchedule(options.learning_rate, options.warmup_steps)
    model.compile(
        Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=5.0),
        kt.MaskedCrossentropy(0.1),
        metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
        jit_compile=False,
    )
    return model


def trained(options, tokenizer, train, val):
    """Trains each model's missing epochs, in turn. Returns the seconds and metrics of each epoch, by model."""
    import keras

    from keras_transformer.data import Batches
    from keras_transformer.files import replaced
    from keras_transformer.training import Progress

    limits = {"batch_tokens": options.batch_tokens, "max_length": 128}
    batches, val_batches = (Batches(pairs, tokenizer, seed=1, **limits) for pairs in (train, val))
    val_data = val_batches.dataset(epochs=1).cache()
    histories, models = {}, {}
    for name in MODELS:
        history, newest = (options.folder / f"{name}.{end}" for end in ("json", "keras"))
        histories[name] = json.loads(history.read_text()) if history.exists() else []
        if histories[name]:
            models[name] = keras.models.load_model(newest)
        else:
            models[name] = compiled(options, name, tokenizer.vocab_size)
        print(
            f"{name}: {models[name].count_params():,} parameters, {len(histories[name])} epochs done",
            flush=True,
        )
    for epoch in range(options.epochs):
        for name, model in models.items():
            history = histories[name]
            if epoch < len(history):
                continue
            seconds = timer()
            fitted = model.fit(
                batches.dataset(first_epoch=epoch),
                steps_per_epoch=batches.steps,
                initial_epoch=epoch,
                epochs=epoch + 1,
                validation_data=val_data,
                callbacks=[seconds, Progress(batches.steps, batches.tokens, epochs=options.epochs)],
                shuffle=False,
                verbose=0,
            )
            found = {key: float(values[-1]) for key, values in fitted.history.items()}
            best = min((row["val_perplexity"] for row in history), default=float("inf"))
            history.append({"seconds": seconds.trained, **found})
            if found["val_perplexity"] < best:
                with replaced(options.folder / f"{name}.best.keras") as temporary:
                    model.save(temporary, include_optimizer=False)
            with replaced(options.folder / f"{name}.keras") as temporary:
                model.save(temporary)
            with replaced(options.folder / f"{name}.json") as temporary:
                temporary.write_text(json.dumps(history, indent=1) + "\n")
            print(
                f"{name}: epoch {epoch + 1}, {seconds.trained:.1f} s, val {found['val_perplexity']:.3g}",
                flush=True,
            )
    return histories


def timer():
    """Makes a callback whose `trained` is the seconds of an epoch, estimated without its first step."""
    import keras

    class Timer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                self.began = time.perf_counter()  # the first step traces
            steps = self.params["steps"]
            if batch == steps - 1:
                self.trained = (time.perf_counter() - self.began) * steps / max(1, steps - 1)

    return Timer()


def scored(options, name, tokenizer, test, history):
    """Measures BLEU and seconds of the model of the best epoch, and the median seconds of an epoch."""
    import keras

    from keras_transformer.decoding import Beam, Greedy
    from keras_transformer.runs.results import serving_model
    from keras_transformer.serving import Translator
    from keras_transformer.training import corpus_scores

    model = serving_model(keras.models.load_model(options.folder / f"{name}.best.keras"))
    best = min(range(len(history)), key=lambda epoch: history[epoch]["val_perplexity"])
    result = {
        "model": name,
        "parameters": model.count_params(),
        "seconds": statistics.median(row["seconds"] for row in history),
        "epoch": best + 1,
        "epochs": len(history),
        "val_perplexity": history[best]["val_perplexity"],
    }
    sources, references = map(list, zip(*test, strict=True))
    for label, strategy in (("greedy", Greedy()), ("beam 4", Beam(4))):
        translator = Translator(model, tokenizer, strategy=strategy)
        translator.translate(sources[:2])  # traces
        start = time.perf_counter()
        translations = translator.translate(sources, verbose=True)
        seconds = time.perf_counter() - start
        (options.folder / f"{name}.{strategy.width}.txt").write_text("\n".join(translations) + "\n")
        result[label] = {**corpus_scores(translations, references), "seconds": seconds}
    return result


def by_length(options, test):
    """Measures the BLEU of a beam of 4 for each quarter of the test set: the shortest sentences first.

    Returns a dict for each model, from the numbers of words, such as "3-9", to BLEU.
    """
    from keras_transformer.training import corpus_scores

    words = [len(source.split()) for source, _ in test]
    order = sorted(range(len(test)), key=words.__getitem__)
    quarters = [order[i * len(order) // 4 : (i + 1) * len(order) // 4] for i in range(4)]
    found = {name: {} for name in MODELS}
    for name in MODELS:
        translations = (options.folder / f"{name}.4.txt").read_text().splitlines()
        for rows in quarters:
            scores = corpus_scores([translations[i] for i in rows], [test[i][1] for i in rows])
            found[name][f"{words[rows[0]]}-{words[rows[-1]]}"] = scores["bleu"]
    return found


def draw(histories, quarters, path):
    """Draws the validation perplexity of each epoch, and BLEU by length."""
    import matplotlib.pyplot as plt

    figure, (curve, lengths) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name, label in zip(MODELS, ("Transformer", "LSTM with attention"), strict=True):
        values = [row["val_perplexity"] for row in histories[name]]
        curve.plot(range(1, len(values) + 1), values, "o-", markersize=4, label=label)
        lengths.plot(quarters[name].keys(), quarters[name].values(), "o-", markersize=5)
    curve.set(
        xlabel="epoch", ylabel="perplexity of the validation set", ylim=(5, 30)
    )  # the first is over 100
    curve.legend(frameon=False)
    lengths.set(xlabel="words of the English sentence, in quarters", ylabel="BLEU of a beam of 4")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
