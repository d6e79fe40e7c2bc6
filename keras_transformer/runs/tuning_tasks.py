"""What a tuning learns, by the kind of the model: chats, the labels of a table, or texts with near vectors."""

import random
import re

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.data import Chats, hold_out, read_chats, read_conll, read_table
from keras_transformer.data.epochs import dataset_of
from keras_transformer.huggingface import (
    chat_template_from_huggingface,
    embedder_options,
    tokenizers_from_huggingface,
    with_dense_modules,
)
from keras_transformer.huggingface.checkpoint import Checkpoint
from keras_transformer.huggingface.families import DECODERS
from keras_transformer.huggingface.reading import read_encoder, read_language_model
from keras_transformer.losses import InBatchNegatives, MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, MatchAccuracy, Perplexity
from keras_transformer.models import ClassificationHead, EncoderModel, Pooler, TaggingHead, TextGroups
from keras_transformer.serving import Classifier, Embedder, Tagger, TextGenerator
from keras_transformer.text.pairs import pack_ids

IGNORED = -100
TABLE = re.compile(r"\.(csv|tsv)$", re.IGNORECASE)
# Number of tokens that a sample of an answer may have, and of characters of a text in the report.
SAMPLE_LENGTH, SAMPLE_CHARACTERS = 64, 200


class Rows:
    """Arrays of rows in batches, each epoch in an order that depends on its number and the seed alone.

    Args:
        x: A dict of arrays `(rows, ...)`.
        y: An array `(rows, ...)`.
        pad_id: The id of padding in `x["token_ids"]`.
        batch_size: Number of rows in a batch; the last one of an epoch may have fewer.
        seed: Seed of the order, an int.
    """

    def __init__(self, x, y, pad_id, batch_size, seed):
        self._x, self._y, self._batch_size, self._seed = x, y, batch_size, seed
        self.steps = -(-len(y) // batch_size)
        self.tokens = int(np.count_nonzero(x["token_ids"] != pad_id))

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Returns the batches for `model.fit`, a `tf.data.Dataset`; see `PackedTexts.dataset`."""

        def batches_of(epoch, skipped):
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._y))
            for i in range(skipped * self._batch_size, len(order), self._batch_size):
                rows = order[i : i + self._batch_size]
                yield {name: array[rows] for name, array in self._x.items()}, self._y[rows]

        def signature(array):
            return tf.TensorSpec((None, *array.shape[1:]), array.dtype)

        specs = {name: signature(array) for name, array in self._x.items()}, signature(self._y)
        return dataset_of(batches_of, self.steps, specs, first_epoch, epochs, first_step)


class ChatTask:
    """A language model learns the answers of chats.

    Args:
        folder: The folder of the checkpoint, a `pathlib.Path`.
        recipe: The `TuningRecipe`.
    """

    length, learning_rate, lora_rate = 512, 2e-5, 2e-4

    def __init__(self, folder, recipe):
        self.folder, self.recipe = folder, recipe
        (self.tokenizer,) = tokenizers_from_huggingface(folder)
        self.template = chat_template_from_huggingface(folder)

    def read(self, path):
        """Reads the chats of a file."""
        return read_chats(path)

    def split(self, rows, share, seed):
        """Returns the chats to train on and those to validate with, two lists."""
        check(
            len(rows) > 1, "`data` must hold two chats or more where no `val_data` is given.", chats=len(rows)
        )
        held = set(random.Random(seed).sample(range(len(rows)), max(1, round(share * len(rows)))))
        sides = [[], []]
        for i, row in enumerate(rows):
            sides[i in held].append(row)
        return sides

    def make_model(self, rows, **options):
        """Reads the model of the folder."""
        return read_language_model(self.folder, chat=True, **options)[0]

    def batches(self, model, rows):
        """Makes the batches of rows."""
        options = {"seed": self.recipe.seed, "pad_id": model.pad_id}
        length = self.recipe.length or min(self.length, model.max_positions or self.length)
        return Chats(rows, self.template, self.tokenizer, length, self.recipe.batch_size, **options)

    def loss(self, model):
        """Returns the loss and the metrics."""
        return MaskedCrossentropy(pad_id=IGNORED), [Perplexity(pad_id=IGNORED)]

    def quality(self, measures):
        """Returns what is larger for a better epoch."""
        return (-measures["val_perplexity"],)

    def prediction(self, model, y):
        """Returns an output of the model, to make the metrics of."""
        return np.zeros((*y.shape, model.vocab_size), "float32")

    def new_layers(self, model):
        """Returns the layers that are trained whole beside adapters."""
        return []

    def inner(self, model):
        """Returns the model that is written."""
        return model

    def samples(self, model, rows):
        """Yields lines with questions and the model's answers."""
        generator = TextGenerator(
            model,
            self.template.with_special_tokens(self.tokenizer),
            max_length=SAMPLE_LENGTH,
            starts_with_bos=self.template.starts_with_bos,
        )
        questions = [
            chat[: max(i for i, each in enumerate(chat) if each["role"] == "assistant")] for chat in rows
        ]
        answers = generator.generate([self.template.prompt(chat) for chat in questions])
        for chat, answer in zip(questions, answers, strict=True):
            yield f"{_short(chat[-1]['content'])}  ->  {_short(answer)}"


class LabelTask:
    """An encoder learns the label of each text, or of each pair of texts, with a new head.

    Args:
        folder: The folder of the checkpoint, a `pathlib.Path`.
        recipe: The `TuningRecipe`.
    """

    columns = "text,label"
    length, learning_rate, lora_rate = 128, 5e-5, 2e-4

    def __init__(self, folder, recipe):
        self.folder, self.recipe = folder, recipe
        (self.tokenizer,) = tokenizers_from_huggingface(folder)

    def read(self, path):
        """Reads the columns of the texts and of the label."""
        return read_table(path, *(self.recipe.columns or self.columns).split(","))

    def split(self, rows, share, seed):
        """Returns the rows to train on and those to validate with, with each label on both sides."""
        return hold_out(rows, share, seed, stratified=True)

    def make_model(self, rows, **options):
        """Reads the encoder, and gives it a new head for the labels unless it has one for them."""
        model, _ = read_encoder(self.folder, **options)
        labels = sorted({row[-1] for row in rows})
        rule = "The column of the labels must have two or more different labels."
        check(len(labels) > 1, rule, labels=labels, columns=self.recipe.columns or self.columns)
        if isinstance(model.head, ClassificationHead) and set(model.head.labels or ()) == set(labels):
            return model
        head = ClassificationHead(len(labels), labels=labels)
        # Of the families, BERT alone has no dropout between its pooler and its head.
        inner = 0.0 if Checkpoint(self.folder).family.model_type == "bert" else head.dropout
        return model.with_head(head, Pooler(dropout=inner))

    def batches(self, model, rows):
        """Makes the batches of rows. A text that is too long is cut."""
        *texts, names = zip(*rows, strict=True)
        labels = self._numbers(model, names)
        x = packed(model, self.tokenizer, self.recipe.length or self.length, *texts)
        y = np.array([labels[name] for name in names], "int32")
        return Rows(x, y, model.pad_id, self.recipe.batch_size, self.recipe.seed)

    def _numbers(self, model, names):
        """Returns the number of each label of a head, a dict, of which the names must be."""
        labels = {label: i for i, label in enumerate(model.head.labels)}
        unknown = sorted(set(names) - labels.keys())
        check(not unknown, "`val_data` must have no other labels than `data`.", labels=unknown[:5])
        return labels

    def loss(self, model):
        """Returns the loss and the metrics."""
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return loss, [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def quality(self, measures):
        """Returns what is larger for a better epoch."""
        return measures["val_accuracy"], -measures["val_loss"]

    def prediction(self, model, y):
        """Returns an output of the model, to make the metrics of."""
        return np.zeros((len(y), model.head.num_classes), "float32")

    def new_layers(self, model):
        """Returns the layers that are trained whole beside adapters."""
        return [each for each in (model.pooler, model.head) if each is not None]

    def inner(self, model):
        """Returns the model that is written."""
        return model

    def samples(self, model, rows):
        """Yields lines with texts and their likeliest labels."""
        *texts, names = zip(*rows, strict=True)
        classifier = Classifier(model, self.tokenizer, pairs=len(texts) > 1)
        answers = classifier.classify(*(list(each) for each in texts))
        for *parts, name, (label, share) in zip(*texts, names, answers, strict=True):
            yield f"{' | '.join(map(_short, parts))}  ->  {label} ({share:.0%}; {name} is right)"


class TagTask(LabelTask):
    """An encoder learns the label of each word, such as names of people and places, with a new head.

    The first piece of a word has its label; the loss ignores the others (Devlin et al., 2019, "BERT", section 5.3).
    """

    def read(self, path):
        """Reads the sentences of a file."""
        return read_conll(path)

    def split(self, rows, share, seed):
        """Returns the sentences to train on and those to validate with."""
        return hold_out(rows, share, seed)

    def make_model(self, rows, **options):
        """Reads the encoder, and gives it a new head for the labels unless it has one for them."""
        model, _ = read_encoder(self.folder, **options)
        labels = sorted({label for _, labels in rows for label in labels})
        if isinstance(model.head, TaggingHead) and set(labels) <= set(model.head.labels or ()):
            return model
        return model.with_head(TaggingHead(len(labels), dropout=0.1, labels=labels))

    def batches(self, model, rows):
        """Makes the batches of sentences. A sentence that is too long is cut."""
        room = min(self.recipe.length or self.length, model.embeddings.max_length or self.length)
        numbers = self._numbers(model, [label for _, labels in rows for label in labels])
        ends = [self.tokenizer.eos_id], [IGNORED]
        starts = ([self.tokenizer.bos_id], [IGNORED]) if model.starts_with_cls else ([], [])
        lines = []
        for words, labels in rows:
            # A word inside a text has a blank before it, which some pieces begin with.
            pieces = self.tokenizer.tokenize([f" {word}" if i else word for i, word in enumerate(words)])
            line = list(starts[0]), list(starts[1])
            for ids, label in zip(pieces.to_list(), labels, strict=True):
                line[0].extend(ids)
                line[1].extend([numbers[label], *[IGNORED] * len(ids)][: len(ids)])
            lines.append([part[: room - 1] + end for part, end in zip(line, ends, strict=True)])
        length = max(len(ids) for ids, _ in lines)
        shape = len(lines), length
        token_ids, targets = np.full(shape, model.pad_id, "int32"), np.full(shape, IGNORED, "int32")
        for i, (ids, labels) in enumerate(lines):
            token_ids[i, : len(ids)], targets[i, : len(ids)] = ids, labels
        x = {"token_ids": token_ids}
        if model.embeddings.segments is not None:
            x["segment_ids"] = np.zeros(shape, "int32")
        return Rows(x, targets, model.pad_id, self.recipe.batch_size, self.recipe.seed)

    def loss(self, model):
        """Returns the loss and the metrics."""
        return MaskedCrossentropy(pad_id=IGNORED), [MaskedAccuracy(pad_id=IGNORED, name="accuracy")]

    def prediction(self, model, y):
        """Returns an output of the model, to make the metrics of."""
        return np.zeros((*y.shape, model.head.num_classes), "float32")

    def samples(self, model, rows):
        """Yields lines with the labels of the pieces of a sentence."""
        tagger = Tagger(model, self.tokenizer)
        for tagged in tagger.tag([" ".join(words) for words, _ in rows]):
            yield _short(" ".join(f"{piece}/{label}" for piece, label, _ in tagged))


class MatchTask:
    """An embedder learns that a text and its match have near vectors, with the other texts of a batch as wrong ones.

    Args:
        folder: The folder of the checkpoint, a `pathlib.Path`.
        recipe: The `TuningRecipe`.
    """

    columns = "text,match"
    length, learning_rate, lora_rate = 128, 2e-5, 2e-4

    def __init__(self, folder, recipe):
        self.folder, self.recipe = folder, recipe
        (self.tokenizer,) = tokenizers_from_huggingface(folder)
        self.options = embedder_options(folder)

    def read(self, path):
        """Reads the columns of the texts. A row whose match was there before is left out: it would be a wrong text."""
        rows, seen = [], set()
        for row in read_table(path, *(self.recipe.columns or self.columns).split(",")):
            if not seen.intersection(row[:2]):
                rows.append(row)
            seen.update(row[:2])
        return rows

    def split(self, rows, share, seed):
        """Returns the rows to train on and those to validate with."""
        return hold_out(rows, share, seed)

    def make_model(self, rows, **options):
        """Reads the encoder with the modules of sentence-transformers."""
        encoder, _ = read_encoder(self.folder, **options)
        encoder = with_dense_modules(encoder, self.folder)
        return TextGroups(encoder, self.options["pooling"], dtype=encoder.dtype_policy)

    def batches(self, model, rows):
        """Makes the batches of groups of texts. A text that is too long is cut."""
        limit = min(self.recipe.length or self.length, self.options.get("max_source_length") or self.length)
        prompt = self.options.get("prompt", "")
        texts = [prompt + text for row in rows for text in row]
        x = packed(model.encoder, self.tokenizer, limit, texts)
        x = {name: ids.reshape(len(rows), -1, ids.shape[-1]) for name, ids in x.items()}
        y, pad_id = np.zeros(len(rows), "float32"), model.encoder.pad_id
        return Rows(x, y, pad_id, self.recipe.batch_size, self.recipe.seed)

    def loss(self, model):
        """Returns the loss and the metrics."""
        return InBatchNegatives(), [MatchAccuracy()]

    def quality(self, measures):
        """Returns what is larger for a better epoch."""
        return (-measures["val_loss"],)

    def prediction(self, model, y):
        """Returns an output of the model, to make the metrics of."""
        return np.zeros((len(y), 2, model.encoder.vector_width(model.pooling)), "float32")

    def new_layers(self, model):
        """Returns the layers that are trained whole beside adapters."""
        return []

    def inner(self, model):
        """Returns the model that is written."""
        return model.encoder

    def samples(self, model, rows):
        """Yields lines with texts and the likeliest matches among these rows."""
        embedder = Embedder(model.encoder, self.tokenizer, **self.options)
        first, second = (np.stack(embedder.embed([row[i] for row in rows])) for i in (0, 1))
        for row, cosines in zip(rows, first @ second.T, strict=True):
            yield f"{_short(row[0])}  ->  {_short(rows[int(np.argmax(cosines))][1])} ({np.max(cosines):.2f})"


def task_of(folder, recipe, data):
    """Returns the task that fits the model of a folder and a file.

    Raises:
        ValueError: If the library tunes no model of this kind.
    """
    checkpoint = Checkpoint(folder)
    if EncoderModel in checkpoint.family.model_classes:
        if checkpoint.makes_vectors:
            return MatchTask(folder, recipe)
        return (LabelTask if TABLE.search(str(data)) else TagTask)(folder, recipe)
    rule = (
        "`folder` must hold a language model, which learns chats, an encoder such as BERT, which learns labels, or an "
        "embedder of sentence-transformers, which learns matches. Train translators with `init_from` "
        "(`keras-transformer train`), and other models with `fit`."
    )
    fits = checkpoint.family.model_type in DECODERS
    check(fits, rule, folder=str(folder), model_type=checkpoint.family.model_type)
    return ChatTask(folder, recipe)


def packed(model, tokenizer, length, *texts):
    """Tokenizes texts or pairs of texts as an `EncoderModel` reads them.

    Args:
        model: The `EncoderModel`.
        tokenizer: Its tokenizer.
        length: Largest number of tokens of a row; less where the model has fewer positions.
        *texts: One or two lists of str.

    Returns:
        A dict of int32 arrays `(rows, length)`.
    """
    ids = pack_ids(
        *(tokenizer.tokenize(list(each)) for each in texts),
        max_length=min(length, model.embeddings.max_length or length),
        pad_id=model.pad_id,
        cls_id=tokenizer.bos_id if model.starts_with_cls else None,
        sep_id=tokenizer.eos_id,
        separators=model.num_separators,
    )
    names = ids if model.embeddings.segments is not None else ("token_ids",)
    return {name: ids[name].numpy() for name in names}


def _short(text):
    """Returns the beginning of a text, on one line."""
    text = " ".join(str(text).split())
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}..."
