"""Gives a translator other tokenizers: its model keeps the embeddings of known pieces, and gets new ones."""

import dataclasses
from typing import NamedTuple

import numpy as np

from keras_transformer.checks import check
from keras_transformer.decoding import ForcedFirstToken, SuppressTokens
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.models import EncoderDecoder
from keras_transformer.models.base import CHECKPOINT_FILES, with_table
from keras_transformer.runs.tokenizers import NAMES, ids_and_sizes
from keras_transformer.serving.translator import FRAME

# SentencePiece writes it for a blank.
BLANK = "\u2581"
SIDES = ("source", "target")


class VocabularyChange(NamedTuple):
    """What becomes of the ids of a vocabulary.

    Attributes:
        side: "source", "target", or "both" for one vocabulary, a str.
        before: Number of ids before, an int.
        after: Number of ids now, an int.
        kept: Number of ids whose piece was known: they keep their rows of the embeddings. An int.
        composed: Number of ids whose row is the mean of the pieces that the old tokenizer splits them into, an int.
        average: Number of ids whose row is the mean of all rows, an int.

    >>> VocabularyChange("both", before=260, after=300, kept=255, composed=40, average=5).after
    300
    """

    side: str
    before: int
    after: int
    kept: int
    composed: int
    average: int


def change_vocabulary(translator, source_tokenizer, target_tokenizer=None):
    """Gives a translator other tokenizers, such as ones with more pieces.

    The row of a piece in the embeddings, and in the output projection, is the row of the same piece before. A new
    piece gets the mean of the rows of the pieces that the old tokenizer splits it into; one that the old tokenizer
    cannot write gets the mean of all rows. All other weights stay. Train the translator before you use it.

    Args:
        translator: A `Translator`, which stays unchanged.
        source_tokenizer: The new tokenizer of the sources.
        target_tokenizer: The new tokenizer of the translations; None for `source_tokenizer`.

    Returns:
        The new `Translator`, and a list of `VocabularyChange`, one for each vocabulary.

    Raises:
        ValueError: If the model has int8 weights or adapters, source and target share an embedding and the tokenizers
            differ, the tokenizers have different special ids, or one lacks a piece that the translator puts before or
            after texts, or that a constraint of it names.

    >>> from keras_transformer.models import Transformer
    >>> from keras_transformer.serving import Translator
    >>> from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer
    >>> model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    >>> tokenizer = SentencePieceTokenizer.train(["a dog runs"] * 9, 20)
    >>> translator, (change,) = change_vocabulary(Translator(model, ByteTokenizer()), tokenizer)
    >>> change.before, change.after == tokenizer.vocab_size == translator.model.source_vocab_size
    (260, True)
    """
    model, old = translator.model, translator.tokenizers
    rule = "`translator` must have one model, not an `Ensemble`."
    check(isinstance(model, EncoderDecoder), rule, model=type(model).__name__)
    new = source_tokenizer, target_tokenizer or source_tokenizer
    check(
        not has_int8_weights(model), "The model must have weights of floats, not of int8.", model=model.name
    )
    shared = model.source.tokens is model.target.tokens
    rule = "`source_tokenizer` and `target_tokenizer` must be one object: the model has one embedding for both sides."
    check(not shared or new[0] is new[1], rule, source=type(new[0]).__name__, target=type(new[1]).__name__)
    ids, sizes = ids_and_sizes(*new)
    for name in ("pad_id", "eos_id"):
        # T5's targets begin with padding, BART's with the end.
        if model.bos_id == getattr(model, name):
            ids["bos_id"] = ids[name]
    # Files of its checkpoint name ids of the old vocabulary.
    config = {name: value for name, value in model.get_config().items() if name != CHECKPOINT_FILES}
    of_sizes = {"source_vocab_size": sizes[0], "target_vocab_size": sizes[1], "vocab_size": sizes[0]}
    changes = {name: value for name, value in {**of_sizes, **ids}.items() if config.get(name) is not None}
    parts = {"source": sizes[0], "target": sizes[1], "output": sizes[1]}
    changes |= {
        name: with_table(config[name], input_dim=size) for name, size in parts.items() if config.get(name)
    }
    other = type(model).from_config({**config, **changes})
    maps, reports = [], []
    for i, side in enumerate(SIDES):
        special = {ids[name]: getattr(model, name) for name in NAMES}
        before, after = getattr(model, f"{side}_vocab_size"), sizes[i]
        rows, kept, composed = _rows(old[i], new[i], before, after, special)
        maps.append(rows)
        reports.append(VocabularyChange(side, before, after, kept, composed, after - kept - composed))
    embeddings = [
        model.source.tokens.weights,
        [*model.target.tokens.weights, *model.output_embedding.weights],
    ]
    sides = {id(weight): i for i, weights in enumerate(embeddings) for weight in weights}
    check(len(model.weights) == len(other.weights), "The model must have no adapters.", model=model.name)
    values = []
    for weight in model.weights:
        value = weight.numpy()
        if id(weight) in sides:
            axis = 1 if weight.name == "reverse_embeddings" else 0
            value = _taken(value, maps[sides[id(weight)]], axis)
        values.append(value)
    other.set_weights(values)
    frame = {
        name: _moved(name, getattr(translator, name), old[i], new[i], model, ids)
        for name, i in zip(FRAME, (0, 0, 1), strict=True)
    }
    constraints = tuple(_with_new_ids(each, old[1], new[1], model, ids) for each in translator.constraints)
    changed = translator.changed(
        model=other, source_tokenizer=new[0], target_tokenizer=new[1], constraints=constraints, **frame
    )
    return changed, [reports[0]._replace(side="both")] if shared else reports


def table_of(changes):
    """Returns lines that show changes of vocabularies as a table, a list of str.

    Args:
        changes: A list of `VocabularyChange`.
    """
    heads = ("vocabulary", "ids before", "ids now", "kept", "mean of pieces", "mean of all")
    rows = [heads, *([change.side, *(f"{number:,}" for number in change[1:])] for change in changes)]
    return ["  ".join(cell.rjust(len(head)) for cell, head in zip(row, heads, strict=True)) for row in rows]


def _rows(old, new, before, after, special):
    """Finds the old ids of each new id.

    Args:
        old: The old tokenizer.
        new: The new tokenizer.
        before: The model's number of ids before, an int.
        after: The model's number of ids now, an int.
        special: A dict from a new special id to the old one.

    Returns:
        A list with a list of int for each new id; how many ids keep their row; how many get the mean of some rows. An
        empty list is the mean of all rows.
    """
    known = {piece: i for i, piece in enumerate(old.pieces(range(old.vocab_size)))}
    special = {new.unk_id: old.unk_id, **special}
    rows = [[]] * after
    for i, piece in enumerate(new.pieces(range(new.vocab_size))):
        rows[i] = [known[piece]] if piece in known else []
    rows = [[special[i]] if special.get(i) is not None else row for i, row in enumerate(rows)]
    kept = sum(map(len, rows))
    missing = [i for i, row in enumerate(rows) if not row and i < new.vocab_size]
    for i, ids in zip(missing, _split(old, new, missing), strict=True):
        rows[i] = [token_id for token_id in ids if token_id < before]
    return rows, kept, sum(bool(rows[i]) for i in missing)


def _split(old, new, ids):
    """Returns the old ids that stand for the text of each new id, lists of int without unknown ones."""
    if not ids:
        return []
    pieces = new.pieces(ids)
    texts = new.detokenize([[i] for i in ids])
    rows = old.tokenize(texts).to_list()
    blank = [i for i, piece in enumerate(old.pieces(range(old.vocab_size))) if piece == BLANK]
    split = []
    for piece, row in zip(pieces, rows, strict=True):
        # Inside a word there is no blank, which SentencePiece puts before each text.
        row = row[1:] if row[:1] == blank and len(row) > 1 and not piece.startswith(BLANK) else row
        unknown = old.is_unknown(np.array(row, "int32")).numpy() if row else []
        split.append([] if any(unknown) else row)
    return split


def _taken(value, rows, axis):
    """Returns a weight with the rows of the new ids along an axis: means of old rows, in float32."""
    value = np.moveaxis(value, axis, 0)
    mean = value.mean(axis=0)
    taken = np.stack([value[row].mean(axis=0) if row else mean for row in rows])
    return np.moveaxis(taken.astype(value.dtype), 0, axis)


def _with_new_ids(constraint, old, new, model, ids):
    """Returns a constraint of the translations with the new ids of its pieces."""
    name = type(constraint).__name__
    # An `ExcludeTokens` is one, too.
    if isinstance(constraint, SuppressTokens):
        return dataclasses.replace(
            constraint, token_ids=_moved(name, constraint.token_ids, old, new, model, ids)
        )
    if isinstance(constraint, ForcedFirstToken):
        return dataclasses.replace(
            constraint, token_id=_moved(name, [constraint.token_id], old, new, model, ids)[0]
        )
    return constraint


def _moved(name, token_ids, old, new, model, ids):
    """Returns the new ids of the pieces of old ones, a tuple of int. `name` says what has the ids."""
    special = {getattr(model, each): ids[each] for each in NAMES}
    known = {piece: i for i, piece in enumerate(new.pieces(range(new.vocab_size)))}
    moved = []
    for token_id in token_ids:
        piece = old.pieces([token_id])[0] if token_id < old.vocab_size else None
        new_id = special.get(token_id, known.get(piece, new.unk_id if token_id == old.unk_id else None))
        check(new_id is not None, f"The new tokenizers must have the pieces of `{name}`.", piece=piece)
        moved.append(new_id)
    return tuple(moved)
