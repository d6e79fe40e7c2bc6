"""Fine-tunes a BERT from Hugging Face to classify texts, and writes it back.

    python examples/fine_tune.py bert-base-multilingual-cased ChatbotData.csv --text Q --label label --output tuned

The first argument is the folder of a checkpoint: config.json, model.safetensors, and the tokenizer's files. The second
is a CSV or TSV file whose first line names its columns. A tenth of its rows is not trained on; the accuracy is measured
on them. The output has two folders: `classifier`, a `Classifier` for this library (`keras-transformer export`), and
`huggingface`, for transformers.
"""

import argparse
import collections
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tables

from keras_transformer.huggingface import from_huggingface, to_huggingface, tokenizers_from_huggingface
from keras_transformer.models import ClassificationHead, EncoderModel, Pooler
from keras_transformer.schedules import LinearSchedule
from keras_transformer.serving import Classifier
from keras_transformer.text import pack
from keras_transformer.training import AdamW, Progress

HELD_OUT = 0.1  # share of the texts that the accuracy is measured on; they are not trained on
MAX_LENGTH = 128  # tokens; fewer for a model with fewer positions
EPOCHS = 3  # and the learning rates: Devlin et al., 2019, appendix A.3
BATCH_SIZE = 32
LEARNING_RATE = 5e-5
SEED = 1
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def load(folder, labels):
    """Returns the encoder of a checkpoint with a new head for the labels, and its tokenizer."""
    (tokenizer,) = tokenizers_from_huggingface(folder)
    model = from_huggingface(folder, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id)
    if not isinstance(model, EncoderModel):
        raise ValueError(f"{folder} must hold a BERT. Received: {type(model).__name__}.")
    return model.with_head(ClassificationHead(len(labels), labels=labels), Pooler()), tokenizer


def train(model, tokenizer, rows, held_out, epochs, learning_rate):
    """Trains on rows of text and label, and shows the accuracy on the held-out rows after each epoch."""
    max_length = min(MAX_LENGTH, model.positions.max_length)

    def arrays(rows):
        texts, names = zip(*rows, strict=True)
        packed = pack(tokenizer, list(texts), max_length=max_length)
        numbers = [model.head.labels.index(name) for name in names]
        return {name: ids.numpy() for name, ids in packed.items()}, np.array(numbers)

    x, y = arrays(rows)
    steps = -(-len(y) // BATCH_SIZE)
    model.compile(
        AdamW(LinearSchedule(learning_rate, epochs * steps, epochs * steps // 10), weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    tokens = np.count_nonzero(x["token_ids"] != model.pad_id)
    options = {"verbose": 0, "callbacks": [Progress(steps, tokens)], "validation_data": arrays(held_out)}
    model.fit(x, y, BATCH_SIZE, epochs, **options)
    return Classifier(model, tokenizer, max_length)


def main(arguments=None):
    """Loads the model, trains it, measures its accuracy and writes both folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of a BERT checkpoint from Hugging Face")
    parser.add_argument("data", help="CSV or TSV of texts and labels")
    parser.add_argument("--text", default="text", help="name of the texts' column")
    parser.add_argument("--label", default="label", help="name of the labels' column")
    parser.add_argument("--output", default="fine_tuned", type=Path, help="new folder for both models")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help="passes over the texts")
    parser.add_argument(
        "--learning-rate", default=LEARNING_RATE, type=float, help="the highest learning rate"
    )
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    keras.utils.set_random_seed(SEED)
    try:
        rows = tables.read(options.data, options.text, options.label)
        model, tokenizer = load(options.folder, sorted({label for _, label in rows}))
        rows, held_out = tables.split(rows, HELD_OUT)
    except ValueError as error:
        parser.error(str(error))
    print(
        f"{len(rows):,} texts, {len(model.head.labels)} labels, {model.count_params():,} parameters",
        flush=True,
    )

    classifier = train(model, tokenizer, rows, held_out, options.epochs, options.learning_rate)
    texts, names = map(list, zip(*held_out, strict=True))
    found = classifier.classify(texts)
    right = np.mean([label == name for (label, _), name in zip(found, names, strict=True)])
    majority = collections.Counter(label for _, label in rows).most_common(1)[0][0]
    print(
        f"{len(texts)} new texts: accuracy {right:.1%}; {names.count(majority) / len(names):.1%} are {majority!r}, "
        "the commonest class"
    )
    for text, (label, p) in list(zip(texts, found, strict=True))[:5]:
        print(f"  {text}  ->  {label} ({p:.0%})")

    options.output.mkdir(parents=True)
    classifier.save(options.output / "classifier")
    to_huggingface(model, options.output / "huggingface")
    for name in TOKENIZER_FILES:
        if (options.folder / name).is_file():
            shutil.copy(options.folder / name, options.output / "huggingface")
    print(f"Wrote {options.output / 'classifier'} and {options.output / 'huggingface'}.")


if __name__ == "__main__":
    main()
