"""Fine-tunes a BERT or a RoBERTa from Hugging Face to classify texts, and writes it back.

    python examples/fine_tune.py
    python examples/fine_tune.py --checkpoint bert-base-multilingual-cased --data reviews.csv --output tuned
    python examples/fine_tune.py --checkpoint roberta-base --data reviews.csv --output tuned --lora 8

A checkpoint is a folder with config.json, model.safetensors and the tokenizer's files. Without one the example first
pretrains a very small BERT on the texts (masked words) and writes it as such a folder, so that it runs as it is. The
data is a CSV or TSV file whose first line names its columns. A tenth of its rows is not trained on; the accuracy is
measured on them. With --lora only the head, the pooler and small matrices beside the kernels of queries and values are
trained (Hu et al., 2021, "LoRA"). The output has the folders `classifier`, a `Classifier` for this library
(`keras-transformer export`), and `huggingface`, for transformers.
"""

import argparse
import collections
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import Masking, hold_out, read_table
from keras_transformer.huggingface import from_huggingface, to_huggingface, tokenizers_from_huggingface
from keras_transformer.huggingface.reading import with_labels
from keras_transformer.layers import (
    Embeddings,
    Encoder,
    LayerNormalization,
    LearnedPositions,
    SegmentEmbedding,
)
from keras_transformer.models import ClassificationHead, EncoderModel, MaskedLanguageHead
from keras_transformer.schedules import LinearSchedule
from keras_transformer.serving import Classifier
from keras_transformer.text import WordPieceTokenizer, pack
from keras_transformer.training import AdamW, Progress

DATA = Path(__file__).with_name("data") / "talk.csv"
HELD_OUT = 0.1  # share of the texts that the accuracy is measured on; they are not trained on
MAX_LENGTH = 128  # tokens; fewer for a model with fewer positions
EPOCHS = 3  # and the learning rates: Devlin et al., 2019, appendix A.3
BATCH_SIZE = 32
LEARNING_RATE = 5e-5
SEED = 1
TOKENIZER_FILES = (
    *("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "sentencepiece.bpe.model"),
)
# Without a checkpoint: a BERT that is pretrained in half a minute, then fine-tuned with larger steps.
SMALL = {"vocab_size": 1000, "d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 128, "max_length": 64}
SMALL_EPOCHS, SMALL_RATE = 40, 2e-3
SMALL_TUNING_EPOCHS, SMALL_TUNING_RATE = 10, 5e-4


def build(tokenizer):
    """A very small BERT that guesses masked words."""
    eps = 1e-12  # BERT's
    return EncoderModel(
        Embeddings(
            tokenizer.vocab_size,
            SMALL["d_model"],
            LearnedPositions(SMALL["max_length"]),
            segments=SegmentEmbedding(2),
            norm=LayerNormalization(epsilon=eps),
            output_bias=True,
        ),
        Encoder(
            SMALL["num_layers"],
            SMALL["num_heads"],
            SMALL["d_ff"],
            activation="gelu",
            layer_norm_epsilon=eps,
        ),
        head=MaskedLanguageHead(layer_norm_epsilon=eps),
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
    )


def pretrain(texts, folder):
    """Trains a very small BERT to guess masked words, and writes it as a Hugging Face folder."""
    tokenizer = WordPieceTokenizer.train(texts, SMALL["vocab_size"], lower_case=False)
    model = build(tokenizer)
    rows = tf.data.Dataset.from_tensor_slices(pack(tokenizer, texts, max_length=SMALL["max_length"]))
    batches = rows.shuffle(len(texts), seed=SEED).batch(BATCH_SIZE).repeat(SMALL_EPOCHS)
    steps = -(-len(texts) // BATCH_SIZE)
    model.compile(
        AdamW(LinearSchedule(SMALL_RATE, SMALL_EPOCHS * steps, steps), weight_decay=0.01),
        kt.MaskedCrossentropy(),
        metrics=[kt.MaskedAccuracy()],
    )
    print(f"Pretrains a BERT of {model.count_params():,} parameters on {len(texts):,} texts.", flush=True)
    history = model.fit(
        batches.apply(Masking(tokenizer, seed=SEED)),
        steps_per_epoch=steps,
        epochs=SMALL_EPOCHS,
        verbose=0,
        shuffle=False,  # the dataset shuffles
    )
    first, last = (history.history["accuracy"][i] for i in (0, -1))
    print(f"Masked words guessed right: {first:.0%} in the first epoch, {last:.0%} in the last.", flush=True)
    to_huggingface(model, folder, tokenizers=(tokenizer,))


def load(folder, labels):
    """Returns the encoder of a checkpoint with a new head for the labels, and its tokenizer."""
    (tokenizer,) = tokenizers_from_huggingface(folder)
    ids = {"pad_id": tokenizer.pad_id, "cls_id": tokenizer.bos_id, "sep_id": tokenizer.eos_id}
    model = from_huggingface(folder, **ids)
    if not isinstance(model, EncoderModel):
        raise ValueError(f"{folder} must hold a BERT or a relative. Received: {type(model).__name__}.")
    return with_labels(model, Path(folder), ClassificationHead, labels), tokenizer


def family_of(folder):
    """Returns the `model_type` of a checkpoint."""
    return json.loads((Path(folder) / "config.json").read_text())["model_type"]


def add_lora(model, rank):
    """Freezes the encoder and the embeddings, and adds matrices of a rank to the projections of queries and values."""
    model.embeddings.trainable = False
    if model.encoder.norm is not None:
        model.encoder.norm.trainable = False
    for layer in model.encoder.layers:
        attention = layer.self_attention
        for part in (attention.key_dense, attention.output_dense, layer.feed_forward):
            part.trainable = False
        for residual in (layer.self_attention_residual, layer.feed_forward_residual):
            residual.trainable = False
        for projection in (attention.query_dense, attention.value_dense):
            projection.enable_lora(rank)


def train(model, tokenizer, rows, held_out, epochs, learning_rate):
    """Trains on rows of text and label, and shows the accuracy on the held-out rows after each epoch."""
    max_length = min(MAX_LENGTH, model.embeddings.max_length)

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
    parser.add_argument(
        "--checkpoint", type=Path, help="folder of a checkpoint from Hugging Face: BERT, RoBERTa"
    )
    parser.add_argument("--data", default=DATA, help="CSV or TSV of texts and labels")
    parser.add_argument("--text", help="name of the texts' column (default: text; Q without --data)")
    parser.add_argument("--label", default="label", help="name of the labels' column")
    parser.add_argument("--output", default="fine_tuned", type=Path, help="new folder for both models")
    parser.add_argument("--epochs", type=int, help=f"passes over the texts (default: {EPOCHS})")
    parser.add_argument(
        "--learning-rate", type=float, help=f"the highest learning rate (default: {LEARNING_RATE})"
    )
    parser.add_argument(
        "--lora", type=int, metavar="RANK", help="train matrices of this rank, not the kernels"
    )
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    keras.utils.set_random_seed(SEED)
    folder, epochs, learning_rate = options.checkpoint, EPOCHS, LEARNING_RATE
    try:
        rows = read_table(
            options.data, options.text or ("Q" if options.data == DATA else "text"), options.label
        )
        labels = sorted({label for _, label in rows})
        rows, held_out = hold_out(rows, HELD_OUT)
        if folder is None:
            folder, epochs, learning_rate = (
                options.output / "pretrained",
                SMALL_TUNING_EPOCHS,
                SMALL_TUNING_RATE,
            )
            pretrain([text for text, _ in rows], folder)
        model, tokenizer = load(folder, labels)
        if options.lora is not None:
            add_lora(model, options.lora)
    except ValueError as error:
        parser.error(str(error))
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    print(
        f"{len(rows):,} texts, {len(model.head.labels)} labels, {model.count_params():,} parameters"
        + (f", {trained:,} of them trained" if options.lora is not None else ""),
        flush=True,
    )

    epochs, learning_rate = options.epochs or epochs, options.learning_rate or learning_rate
    classifier = train(model, tokenizer, rows, held_out, epochs, learning_rate)
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

    options.output.mkdir(parents=True, exist_ok=True)
    classifier.save(options.output / "classifier")
    to_huggingface(model, options.output / "huggingface", family=family_of(folder))
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copy(folder / name, options.output / "huggingface")
    print(f"Wrote {options.output / 'classifier'} and {options.output / 'huggingface'}.")


if __name__ == "__main__":
    main()
