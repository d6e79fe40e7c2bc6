"""What a tuning learns, by the kind of the model: chats, the labels of a table, or texts with near vectors."""

import json
import logging
import re
from pathlib import Path

import keras
import numpy as np

from keras_transformer.checks import check
from keras_transformer.data import Chats, hold_out, read_chats, read_conll, read_table
from keras_transformer.entity_labels import OUTSIDE
from keras_transformer.huggingface import (
    chat_template_from_huggingface,
    embedder_options,
    tokenizers_from_huggingface,
    with_dense_modules,
)
from keras_transformer.huggingface.checkpoint import Checkpoint
from keras_transformer.huggingface.families.encoders import EncoderFamily
from keras_transformer.huggingface.reading import (
    embedder_arguments,
    encoder_tokenizer,
    read_encoder,
    read_language_model,
    with_labels,
)
from keras_transformer.losses import InBatchNegatives, MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, MatchAccuracy, Perplexity
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    LanguageModel,
    TaggingHead,
    TextGroups,
)
from keras_transformer.runs.label_results import entity_f1, evaluate_labels, labels_of_words, mean_f1
from keras_transformer.runs.tuning_rows import (
    Rows,
    length_of,
    packed,
    packed_words,
    short,
    weights_of_classes,
)
from keras_transformer.serving import Classifier, Embedder, Tagger, TextGenerator

log = logging.getLogger(__name__)

IGNORED = -100
TABLE = re.compile(r"\.(csv|tsv)$", re.IGNORECASE)
# Number of tokens that a sample of an answer may have.
SAMPLE_LENGTH = 64


class Task:
    """Base class of what a tuning learns.

    A subclass of `has_classes` weighs them where the recipe says so.

    Args:
        folder: The folder of the checkpoint, a `pathlib.Path`.
        recipe: The `TuningRecipe`.
    """

    has_classes = False

    def __init__(self, folder, recipe):
        rule = "`class_weights` is for an encoder that learns labels."
        check(self.has_classes or not recipe.class_weights, rule, class_weights=recipe.class_weights)
        self.folder, self.recipe = folder, recipe
        self.tokenizer = self.read_tokenizer()

    def read_tokenizer(self):
        """Reads the tokenizer of an encoder."""
        return encoder_tokenizer(self.folder)[0]

    def read_columns(self, path):
        """Reads the columns of a table that the recipe names, or the usual ones."""
        return read_table(path, *(self.recipe.columns or self.columns).split(","))

    def new_layers(self, model):
        """Returns the layers that are trained whole beside adapters."""
        return []

    def measures(self, model, batches):
        """Returns further measures of the batches of rows that were held out, a dict from names to numbers."""
        return {}

    def scores(self, model, rows):
        """Returns lines with further scores of rows that were held out."""
        return []

    def inner(self, model):
        """Returns the model that is written."""
        return model


class ChatTask(Task):
    """A language model learns the answers of chats."""

    length, learning_rate, lora_rate = 512, 2e-5, 2e-4

    def __init__(self, folder, recipe):
        super().__init__(folder, recipe)
        self.template = chat_template_from_huggingface(folder)

    def read_tokenizer(self):
        """Reads the tokenizer of a language model."""
        return tokenizers_from_huggingface(self.folder)[0]

    def read(self, path):
        """Reads the chats of a file."""
        return read_chats(path)

    def split(self, rows, share, seed):
        """Returns the chats to train on and those to validate with, two lists."""
        sides = hold_out([(json.dumps(chat), chat) for chat in rows], share, seed)
        return [[chat for _, chat in side] for side in sides]

    def make_model(self, rows, **options):
        """Reads the model of the folder."""
        return read_language_model(self.folder, chat=True, **options)[0]

    def batches(self, model, rows, weighted=False):
        """Makes the batches of rows."""
        options = {"seed": self.recipe.seed, "pad_id": model.pad_id}
        length = length_of(self, model.max_positions)
        return Chats(rows, self.template, self.tokenizer, length, self.recipe.batch_size, **options)

    def loss(self, model):
        """Returns the loss and the metrics."""
        return MaskedCrossentropy(pad_id=IGNORED), [Perplexity(pad_id=IGNORED)]

    def quality(self, measures):
        """Returns what is larger for a better epoch."""
        return (-measures["val_perplexity"],)

    def samples(self, model, rows):
        """Yields lines with questions and the model's answers."""
        generator = TextGenerator(
            model,
            self.template.with_special_tokens(self.tokenizer),
            max_length=SAMPLE_LENGTH,
            starts_with_bos=self.template.starts_with_bos,
        )
        answered = [[i for i, each in enumerate(chat) if each["role"] == "assistant"] for chat in rows]
        questions = [chat[: places[-1]] for chat, places in zip(rows, answered, strict=True) if places]
        if not questions:
            return
        answers = generator.generate([self.template.prompt(chat) for chat in questions])
        for chat, answer in zip(questions, answers, strict=True):
            yield f"{short(chat[-1]['content'])}  ->  {short(answer)}"


class LabelTask(Task):
    """An encoder learns the label of each text, or of each pair of texts, with a new head."""

    columns, has_classes = "text,label", True
    length, learning_rate, lora_rate = 128, 5e-5, 2e-4

    def read(self, path):
        """Reads the columns of the texts and of the label."""
        return self.read_columns(path)

    def split(self, rows, share, seed):
        """Returns the rows to train on and those to validate with, with each label on both sides."""
        return hold_out(rows, share, seed, stratified=True)

    def make_model(self, rows, **options):
        """Reads the encoder, and gives it a new head for the labels unless it has one for them."""
        model, _ = read_encoder(self.folder, **options)
        labels = sorted({row[-1] for row in rows})
        rule = "The column of the labels must have two or more different labels."
        check(len(labels) > 1, rule, labels=labels, columns=self.recipe.columns or self.columns)
        own = model.head
        fits = isinstance(own, ClassificationHead) and set(own.labels or ()) == set(labels)
        # An int8 head would not be trained.
        if fits and not own.multi_label and self.recipe.precision != "int8":
            return model
        return with_labels(model, self.folder, ClassificationHead, labels)

    def batches(self, model, rows, weighted=False):
        """Makes the batches of rows. A text that is too long is cut."""
        *texts, names = zip(*rows, strict=True)
        labels = self._numbers(model, names)
        x = packed(model, self.tokenizer, length_of(self, model.embeddings.max_length), *texts)
        y = np.array([labels[name] for name in names], "int32")
        weights = weights_of_classes(y) if weighted else None
        return Rows(x, y, model.pad_id, self.recipe.batch_size, self.recipe.seed, weights)

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

    def measures(self, model, batches):
        """Returns the mean F1 of the classes where each counts the same: the accuracy is that of the frequent ones."""
        return {"f1": mean_f1(model, batches)} if self.recipe.class_weights else {}

    def quality(self, measures):
        """Returns what is larger for a better epoch."""
        return measures.get("val_f1", 0.0), measures["val_accuracy"], -measures["val_loss"]

    def new_layers(self, model):
        """Returns the layers that are trained whole beside adapters."""
        return [each for each in (model.pooler, model.head) if each is not None]

    def servable(self, model, rows):
        """Makes what answers rows with labels."""
        length = length_of(self, model.embeddings.max_length)
        return Classifier(model, self.tokenizer, length, pairs=len(rows[0]) > 2)

    def scores(self, model, rows):
        """Returns the table of the scores of labels or entities."""
        return evaluate_labels(self.servable(model, rows), rows).lines()

    def samples(self, model, rows):
        """Yields lines with texts and their likeliest labels."""
        *texts, names = zip(*rows, strict=True)
        answers = self.servable(model, rows).classify(*map(list, texts))
        for *parts, name, (label, share) in zip(*texts, names, answers, strict=True):
            yield f"{' | '.join(map(short, parts))}  ->  {label} ({share:.0%}; {name} is right)"


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
        words = sum(len(each) for each, _ in rows)
        rule = (
            "The last column of each line must be the label of a word, of two labels or more: is this a text?"
        )
        check(1 < len(labels) <= max(2, words // 2), rule, labels=labels[:5], words=words)
        fits = isinstance(model.head, TaggingHead) and set(labels) <= set(model.head.labels or ())
        # An int8 head would not be trained.
        if fits and self.recipe.precision != "int8":
            return model
        return with_labels(model, self.folder, TaggingHead, labels)

    def batches(self, model, rows, weighted=False):
        """Makes the batches of sentences. A sentence that is too long is cut."""
        sentences, names = zip(*rows, strict=True)
        x, words = packed_words(
            model, self.tokenizer, length_of(self, model.embeddings.max_length), sentences
        )
        numbers = self._numbers(model, [label for labels in names for label in labels])
        y = np.full_like(words, IGNORED)
        for row, place in zip(*np.nonzero(words >= 0), strict=True):
            y[row, place] = numbers[names[row][words[row, place]]]
        weights = weights_of_classes(y) if weighted else None
        return Rows(x, y, model.pad_id, self.recipe.batch_size, self.recipe.seed, weights)

    def loss(self, model):
        """Returns the loss and the metrics."""
        return MaskedCrossentropy(pad_id=IGNORED), [MaskedAccuracy(pad_id=IGNORED, name="accuracy")]

    def measures(self, model, batches):
        """Returns the F1 of entities. Labels without "O", such as parts of speech, are no entities."""
        if OUTSIDE not in model.head.labels:
            return super().measures(model, batches)
        return {"f1": entity_f1(model, batches)}

    def servable(self, model, rows):
        """Makes what answers rows with labels."""
        return Tagger(model, self.tokenizer, length_of(self, model.embeddings.max_length))

    def samples(self, model, rows):
        """Yields lines with the words of a sentence and their labels."""
        sentences = [words for words, _ in rows]
        found = labels_of_words(self.servable(model, rows), sentences)
        for words, labels in zip(sentences, found, strict=True):
            yield short(" ".join(f"{word}/{label}" for word, label in zip(words, labels, strict=True)))


class MatchTask(Task):
    """An embedder learns that a text and its match have near vectors, with the other texts of a batch as wrong ones."""

    columns = "text,match"
    length, learning_rate, lora_rate = 128, 2e-5, 2e-4

    def __init__(self, folder, recipe):
        super().__init__(folder, recipe)
        rule = (
            "`batch_size` must be at least 2 for an embedder: the other rows of a batch are the wrong texts."
        )
        check(recipe.batch_size > 1, rule, batch_size=recipe.batch_size)

    def read(self, path):
        """Reads the columns of the texts. A row whose match was there before is left out: it would be a wrong text."""
        table, rows, seen = self.read_columns(path), [], set()
        for row in table:
            if not seen.intersection(row):
                rows.append(row)
                seen.update(row)
        if len(rows) < len(table):
            rule = "%s: %d of %d rows are left out: a text of them is in an earlier row"
            log.warning(rule, path, len(table) - len(rows), len(table))
        check(len(rows) > 1, f"{path} must have two rows or more without a common text.", rows=len(rows))
        return rows

    def split(self, rows, share, seed):
        """Returns the rows to train on and those to validate with, two at least of each."""
        rule = "`data` must have four rows or more where no `val_data` is given."
        check(len(rows) > 3, rule, rows=len(rows))
        return hold_out(rows, min(max(share, 2 / len(rows)), 1 - 2 / len(rows)), seed)

    def make_model(self, rows, **options):
        """Reads the encoder with the modules of sentence-transformers."""
        encoder, _ = read_encoder(self.folder, **options)
        encoder = with_dense_modules(encoder, self.folder)
        if encoder.pooler is not None:
            # It makes no vector, so nothing would train it.
            encoder.pooler.trainable = False
        return TextGroups(encoder, embedder_options(self.folder)["pooling"], dtype=encoder.dtype_policy)

    def batches(self, model, rows, weighted=False):
        """Makes the batches of groups of texts. A text that is too long is cut."""
        options = embedder_arguments(self.folder, model.encoder)
        limit, prompt = length_of(self, options.get("max_source_length")), options.get("prompt", "")
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

    def inner(self, model):
        """Returns the model that is written."""
        return model.encoder

    def samples(self, model, rows):
        """Yields lines with texts and the likeliest matches among these rows."""
        options = embedder_arguments(self.folder, model.encoder)
        embedder = Embedder(model.encoder, self.tokenizer, **options)
        first, second = (np.stack(embedder.embed([row[i] for row in rows])) for i in (0, 1))
        for row, cosines in zip(rows, first @ second.T, strict=True):
            yield f"{short(row[0])}  ->  {short(rows[int(np.argmax(cosines))][1])} ({np.max(cosines):.2f})"


def task_of(folder, recipe, data):
    """Returns the task that fits the model of a folder and a file.

    Raises:
        ValueError: If the library tunes no model of this kind.
    """
    checkpoint = Checkpoint(folder)
    is_table, is_lines = bool(TABLE.search(str(data))), ".jsonl" in Path(data).suffixes
    encodes = EncoderModel in checkpoint.family.model_classes
    encodes &= checkpoint.makes_vectors or isinstance(checkpoint.family, EncoderFamily)
    rule = "`columns` is for a table of texts, a .csv or .tsv file."
    check(recipe.columns is None or (is_table and encodes), rule, columns=recipe.columns, data=str(data))
    if encodes:
        rule = "An encoder learns from a table, .csv or .tsv, or from words with labels. Chats are for language models."
        check(not is_lines, rule, data=str(data))
        if checkpoint.makes_vectors:
            return MatchTask(folder, recipe)
        return (LabelTask if is_table else TagTask)(folder, recipe)
    rule = (
        "`folder` must hold a language model, which learns chats, an encoder such as BERT, which learns labels, or an "
        "embedder of sentence-transformers, which learns matches. Train translators with `init_from` "
        "(`keras-transformer train`), and other models with `fit`."
    )
    fits = LanguageModel in checkpoint.family.model_classes
    check(fits, rule, folder=str(folder), model_type=checkpoint.family.model_type)
    rule = "A language model learns from chats, lines of JSON. Tables are for encoders."
    check(not is_table, rule, data=str(data))
    return ChatTask(folder, recipe)
