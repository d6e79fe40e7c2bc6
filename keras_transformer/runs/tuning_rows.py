"""Rows of a tuning: arrays in batches whose order can be repeated, and texts as an encoder reads them."""

import logging

import keras
import numpy as np
import tensorflow as tf
import tqdm

from keras_transformer.checks import check
from keras_transformer.data.epochs import dataset_of
from keras_transformer.text.pairs import pack_ids

log = logging.getLogger(__name__)

# Number of characters of a text in the report.
SAMPLE_CHARACTERS = 200
# Number of batches whose logits are in memory together.
BATCHES_AT_ONCE = 16


class Rows:
    """Arrays of rows in batches, each epoch in an order that depends on its number and the seed alone.

    Args:
        x: A dict of arrays `(rows, ...)`.
        y: An array `(rows, ...)`.
        pad_id: The id of padding in `x["token_ids"]`.
        batch_size: Number of rows in a batch; the last one of an epoch may have fewer.
        seed: Seed of the order, an int.
        weights: An array of the shape of `y`, the weight of each label; None for the same weight.

    Attributes:
        x, y, batch_size: As they were given.
        steps: Number of batches in an epoch.
        tokens: Number of ids that are not padding.
    """

    def __init__(self, x, y, pad_id, batch_size, seed, weights=None):
        self.x, self.y, self.batch_size, self._seed = x, y, batch_size, seed
        self._targets = (y,) if weights is None else (y, weights)
        self.steps = -(-len(y) // batch_size)
        self.tokens = int(np.count_nonzero(x["token_ids"] != pad_id))

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Returns the batches for `model.fit`, a `tf.data.Dataset`; see `PackedTexts.dataset`."""

        def batches_of(epoch, skipped):
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self.y))
            for i in range(skipped * self.batch_size, len(order), self.batch_size):
                rows = order[i : i + self.batch_size]
                yield (
                    {name: array[rows] for name, array in self.x.items()},
                    *(each[rows] for each in self._targets),
                )

        def signature(array):
            return tf.TensorSpec((None, *array.shape[1:]), array.dtype)

        specs = {name: signature(array) for name, array in self.x.items()}, *map(signature, self._targets)
        return dataset_of(batches_of, self.steps, specs, first_epoch, epochs, first_step)


def length_of(task, longest):
    """Returns the largest number of tokens in a row: the recipe's, or the task's if the model has so many.

    Args:
        task: The task.
        longest: The largest number that the model reads; None for any.
    """
    asked = task.recipe.length
    rule = f"`length` must be at most the number of tokens that the model reads, {longest}."
    check(asked is None or longest is None or asked <= longest, rule, length=asked)
    return asked or min(task.length, longest or task.length)


def weights_of_classes(y):
    """Returns the weight of each label: the rarer its class, the larger, so that each class counts the same.

    A label has the weight `n / (k * count)` for `n` labels of `k` classes, `count` of them of its class (King and Zeng,
    2001).

    Args:
        y: int array, the classes of labels; a negative number is none, and has the weight 0.

    Returns:
        A float32 array of the shape of `y`.

    Raises:
        ValueError: If no number is a class.

    >>> weights_of_classes(np.array([[0, 1, 1, 1, 1, -100]])).tolist()
    [[2.5, 0.625, 0.625, 0.625, 0.625, 0.0]]
    """
    check(np.any(y >= 0), "The rows must have one label at least to be weighted by their classes.", labels=0)
    counts = np.bincount(y[y >= 0])
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(1, counts))
    return np.where(y >= 0, weights[np.maximum(y, 0)], 0).astype("float32")


def packed_words(model, tokenizer, length, sentences):
    """Tokenizes the words of sentences as an `EncoderModel` reads them. Warns of sentences that are cut.

    Args:
        model: The `EncoderModel`.
        tokenizer: Its tokenizer.
        length: Largest number of tokens of a row.
        sentences: Lists of str, the words.

    Returns:
        A dict of int32 arrays `(rows, tokens)`; and int32 `(rows, tokens)`: at the first piece of a word its number in
        the sentence, else -1.
    """
    start = [tokenizer.bos_id] if model.starts_with_cls else []
    lines, numbers, cut = [], [], 0
    for words in sentences:
        # A word inside a text has a blank before it, which some pieces begin with.
        pieces = tokenizer.tokenize([f" {word}" if i else word for i, word in enumerate(words)]).to_list()
        line, number = [*start], [-1] * len(start)
        for i, ids in enumerate(pieces):
            line += ids
            number += [i, *[-1] * len(ids)][: len(ids)]
        cut += len(line) > length - 1
        lines.append([*line[: length - 1], tokenizer.eos_id])
        numbers.append([*number[: length - 1], -1])
    if cut:
        log.warning("%d of %d sentences are cut at %d tokens (`length`)", cut, len(sentences), length)
    token_ids, numbers = (
        keras.utils.pad_sequences(rows, padding="post", value=value)
        for rows, value in ((lines, model.pad_id), (numbers, -1))
    )
    x = {"token_ids": token_ids}
    if model.embeddings.segments is not None:
        x["segment_ids"] = np.zeros_like(token_ids)
    return x, numbers


def packed(model, tokenizer, length, *texts):
    """Tokenizes texts or pairs of texts as an `EncoderModel` reads them.

    Args:
        model: The `EncoderModel`.
        tokenizer: Its tokenizer.
        length: Largest number of tokens of a row, which the model has positions for.
        *texts: One or two lists of str.

    Returns:
        A dict of int32 arrays `(rows, length)`.
    """
    parts = [tokenizer.tokenize(list(each)) for each in texts]
    room = length - model.starts_with_cls - 1 - (len(parts) - 1) * model.num_separators
    cut = int(np.sum(sum(each.row_lengths().numpy() for each in parts) > room))
    if cut:
        log.warning("%d of %d texts are cut at %d tokens (`length`)", cut, len(texts[0]), length)
    ids = pack_ids(
        *parts,
        max_length=length,
        pad_id=model.pad_id,
        cls_id=tokenizer.bos_id if model.starts_with_cls else None,
        sep_id=tokenizer.eos_id,
        separators=model.num_separators,
    )
    names = ids if model.embeddings.segments is not None else ("token_ids",)
    return {name: ids[name].numpy() for name in names}


def likeliest(model, x, batch_size, verbose=False):
    """Returns the likeliest class of each row, or of each of its tokens.

    Args:
        model: An `EncoderModel` with a head of classes.
        x: A dict of arrays `(rows, ...)`.
        batch_size: Number of rows in a batch.
        verbose: Whether to show a progress bar on stderr.

    Returns:
        An int array `(rows,)` or `(rows, tokens)`.
    """
    count, size = len(x["token_ids"]), BATCHES_AT_ONCE * batch_size
    found = []
    with tqdm.tqdm(total=count, unit="row", disable=not verbose, leave=False) as bar:
        for i in range(0, count, size):
            rows = {name: array[i : i + size] for name, array in x.items()}
            found.append(np.argmax(model.predict(rows, batch_size=batch_size, verbose=0), axis=-1))
            bar.update(len(found[-1]))
    return np.concatenate(found)


def short(text):
    """Returns the beginning of a text, on one line."""
    text = " ".join(str(text).split())
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}..."
