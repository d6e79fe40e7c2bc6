"""Adapters of LoRA that PEFT wrote: folders with adapter_config.json and adapter_model.safetensors.

They are merged into the tensors of their base model while these are read (Hu et al., 2022, "LoRA: Low-Rank Adaptation
of Large Language Models", section 4.1).
"""

import contextlib
import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.checks import check, check_range
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    StoredTensor,
    read_if_there,
    read_json,
    tensors_of,
)
from keras_transformer.huggingface.known_keys import ADAPTER as KNOWN
from keras_transformer.huggingface.known_keys import check_keys
from keras_transformer.huggingface.tensors import full_name, weight_ids

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
BEGINNING = "base_model.model."
LOW, HIGH = re.compile(r"\.lora_(embedding_)?A(\.weight)?$"), re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
# The ways that leave the base model as it is.
INITIALISED = (True, False, "gaussian", "eva", "orthogonal")
# Keys that ask for another computation, with the values without effect.
NEUTRAL = {
    "use_dora": False,
    "lora_bias": False,
    "use_qalora": False,
    "ensure_weight_tying": False,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "loftq_config": {},
}
TOKENIZER_FILE = re.compile(
    r"(tokenizer|vocab|target_vocab|added_tokens|special_tokens_map|tokenizer_config)\.(json|txt)|merges\.txt"
    r"|.*\.(model|spm)|chat_template\..*"
)
PIECES_FILE = re.compile(r"tokenizer\.json|vocab\..*|.*\.(model|spm)")
# PEFT reads a regular expression in a pattern, and some of those never end. These pieces of one are read here.
PIECE = re.compile(
    r"(?P<anything>\.\*)|(?P<digits>\\d\+|\[0-9\]\+)|\((?P<either>[\w.\\|-]+)\)|(?P<text>(?:[\w-]|\\\.|\.(?!\*))+)",
    re.ASCII,
)
# The number of names with and without a wildcard, of all patterns together.
MOST_WILDCARDS, MOST_NAMES = 100, 10_000
MOST_PIECES = 20  # of a name
LARGEST_ALPHA = 10**6
OF_THE_BASE = (CONFIG, WEIGHTS, INDEX, "generation_config.json")
# The config.json of a model with a head, which names its labels: PEFT keeps none. Under its own name it would make
# transformers look for a whole model.
HEAD_CONFIG = "adapter_head_config.json"


class Joined(type(Path())):
    """The path of the folder that `joined` makes, whose files are a whole checkpoint with its adapter."""


class MergedTensor(NamedTuple):
    """A tensor of the base model and the product of two matrices that is added to it.

    stored: The `StoredTensor` of the base model.
    low: The `StoredTensor` of the matrix `(rank, inputs)`.
    high: The `StoredTensor` of the matrix `(outputs, rank)`.
    scale: Factor of the product.
    transposed: Whether the base model's tensor is `(inputs, outputs)`.
    """

    stored: StoredTensor
    low: StoredTensor
    high: StoredTensor
    scale: float
    transposed: bool

    @property
    def name(self):
        """The name of the base model's tensor."""
        return self.stored.name

    @property
    def shape(self):
        """The shape of the base model's tensor."""
        return self.stored.shape

    def problems(self, expected_shape):
        """Returns why the tensors cannot be read or do not fit, a list of str."""
        product = self.high.shape[:1] + self.low.shape[1:]
        product = product[::-1] if self.transposed else product
        problems = self.stored.problems(expected_shape)
        problems += [problem for each in (self.low, self.high) for problem in each.problems(each.shape)]
        if product != expected_shape or self.high.shape[1:] != self.low.shape[:1]:
            sizes = f"{self.low.shape} and {self.high.shape}"
            problems.append(
                f"the adapter of {self.name!r:.200} has shapes {sizes}, not those of {expected_shape}"
            )
        return problems

    def read(self):
        """Reads the sum, a float32 array."""
        product = self.high.read() @ self.low.read()
        return self.stored.read() + np.float32(self.scale) * (product.T if self.transposed else product)


@contextlib.contextmanager
def joined(folder, base=None):
    """Gives a folder that holds a whole checkpoint: for an adapter the base model's files and its own, as links.

    The files of the tokenizer are the adapter's where it has one with pieces. If not, they are the base model's, and a
    file of the adapter takes the place of one with the same name.

    Args:
        folder: A path of a checkpoint or of an adapter.
        base: A path of the adapter's base model; None for the path in adapter_config.json.

    Raises:
        ValueError: If there is no such folder, `folder` is not an adapter and `base` is given, or `folder` holds the
            weights of a whole model and those of an adapter.
    """
    if isinstance(folder, Joined):
        yield folder
        return
    folder = Path(folder)
    whole = (folder / CONFIG).is_file() and any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    if whole or not (folder / ADAPTER_CONFIG).is_file():
        rule = f"`base` is for a folder with {ADAPTER_CONFIG} and without a model of its own."
        check(base is None, rule, base=base, folder=str(folder))
        rule = (
            f"`folder` must hold a whole model or an adapter, not both. If the adapter is in the model, remove "
            f"{ADAPTER_CONFIG} and its weights. If it is not, move them to a folder of their own, and pass `base`."
        )
        check(not (folder / ADAPTER_CONFIG).is_file(), rule, folder=str(folder))
        yield folder
        return
    rule = f"`folder` must hold {ADAPTER}: a .bin file is not read, because such a file can run code."
    check((folder / ADAPTER).is_file() or not (folder / PICKLED).is_file(), rule, folder=str(folder))
    named = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    given = base if base is not None else named
    rule = "`base` must be the folder of the adapter's base model, because nothing is downloaded."
    is_adapter = isinstance(given, (str, os.PathLike)) and os.path.isfile(os.path.join(given, CONFIG))
    check(is_adapter, rule, base=base, base_model_name_or_path=named)
    own = [path for path in folder.iterdir() if path.name not in OF_THE_BASE]
    has_tokenizer = any(PIECES_FILE.fullmatch(path.name) for path in own)
    inherited = [
        path
        for path in Path(given).iterdir()
        if not (has_tokenizer and TOKENIZER_FILE.fullmatch(path.name))
        and path.name not in (ADAPTER_CONFIG, ADAPTER)
    ]
    files = {path.name: path for path in (*inherited, *own)}
    with tempfile.TemporaryDirectory() as temporary:
        for name, path in files.items():
            # `resolve` would raise `RuntimeError` for a link to itself.
            _link(path.absolute(), Path(temporary, name))
        try:
            yield Joined(temporary)
        except ValueError as error:
            message = str(error)
            if temporary not in message:
                raise
            # The user knows the two folders, and not the temporary one. A name may be the beginning of a longer one.
            for name in sorted(files, key=len, reverse=True):
                message = message.replace(str(Path(temporary, name)), str(files[name]))
            raise ValueError(message.replace(temporary, str(folder))) from None


def _link(path, target):
    """Makes a link to a file or a folder, or a copy where links are not allowed."""
    try:
        target.symlink_to(path, target_is_directory=path.is_dir())
    except OSError:
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target)


def head_keys(config, family, folder):
    """Returns the keys of config.json for the head of an adapter, a dict; empty where it has no head of its own.

    Args:
        config: The config.json of the base model, a dict.
        family: The `Family` of the base model.
        folder: A `pathlib.Path` of the checkpoint, perhaps with an adapter.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return {}
    task = read_json(folder / ADAPTER_CONFIG).get("task_type")
    ends = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
    names = [name for name in family.architectures if task in ends and name.endswith(ends[task])]
    if not names:
        return {}
    saved = {each.name.removeprefix(BEGINNING): each for each in tensors_of(folder / ADAPTER)}
    scores = saved.get(f"{family.classes[names[0]].dense}.weight")
    has_head = config.get("architectures") == names
    rule = f"{ADAPTER} must hold the head of its task, or the base model must have it."
    fits = has_head if scores is None else len(scores.shape) == 2
    check(fits, rule, task_type=task, architectures=config.get("architectures"))
    if scores is None:
        return {}
    count = scores.shape[0]

    def names_labels(described):
        labels = described.get("id2label")
        return isinstance(labels, dict) and len(labels) == count

    configs = read_if_there(folder, HEAD_CONFIG), config if has_head else {}
    head = next(filter(names_labels, configs), {})
    keys = {key: head.get(key) for key in ("id2label", "problem_type")}
    return {"architectures": names, "num_labels": count, **keys}


def with_adapter(stored, folder, tensors, family):
    """Returns the tensors of a checkpoint, with the adapter of the folder merged into them.

    Args:
        stored: The tensors of the base model, a list of `StoredTensor`.
        folder: A `pathlib.Path` of the checkpoint, perhaps with an adapter.
        tensors: The `Tensor`s of the model.
        family: The `Family` of the model.

    Returns:
        A list of `StoredTensor` and `MergedTensor`.

    Raises:
        ValueError: If the adapter is not one of LoRA, asks for more than a sum, or has a tensor that the base model
            does not have or that is tied to another one.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return stored
    config = read_json(folder / ADAPTER_CONFIG)
    check_config(config, ADAPTER_CONFIG, peft_type="LORA")
    check_config(config, ADAPTER_CONFIG, **NEUTRAL)
    check_keys(config, (*KNOWN, *NEUTRAL), ADAPTER_CONFIG)
    config |= {key: _by_names(config, key) for key in ("alpha_pattern", "rank_pattern")}
    initialised = config.get("init_lora_weights", True)
    rule = f"`init_lora_weights` of {ADAPTER_CONFIG} must be one of {INITIALISED}: others change the base model too."
    check(initialised in INITIALISED, rule, init_lora_weights=initialised)
    by_name = {tensor.name: tensor for tensor in tensors}
    tied = [weight_ids(tensor) for tensor in tensors]

    def own(name):
        bare = name.removeprefix(BEGINNING)
        full = full_name(bare, by_name, family.prefix, family.renamed)
        return full if full in by_name else bare

    merged = {own(each.name): each for each in stored}
    # The head of the base model is not read.
    if config.get("task_type") in ("SEQ_CLS", "TOKEN_CLS"):
        merged = {name: each for name, each in merged.items() if name in by_name}
    lows, highs, saved = {}, {}, {}
    for each in tensors_of(folder / ADAPTER):
        for end, parts in ((LOW, lows), (HIGH, highs)):
            if end.search(each.name):
                parts[own(end.sub("", each.name) + ".weight")] = each
                break
        else:
            name = own(each.name.replace(".base_layer.", "."))
            saved[name] = each._replace(name=name, name_in_file=each.name)
    for name in sorted({*lows, *highs}):
        rule = f"{ADAPTER} must hold two matrices for each tensor that it changes, which the base model must hold."
        check(name in lows and name in highs and name in merged and name in by_name, rule, tensor=name)
        tensor = by_name[name]
        rule = f"{ADAPTER} must not change a tensor that is tied to another one."
        check(tied.count(weight_ids(tensor)) == 1, rule, tensor=name)
        rank = lows[name].shape[0] if len(lows[name].shape) == 2 else None
        scale = _scale(config, name.removesuffix(".weight"), rank)
        merged[name] = MergedTensor(merged[name], lows[name], highs[name], scale, tensor.axes == (0, 1))
    return list({**merged, **saved}.values())


def _scale(config, module, rank):
    """Returns the factor of an adapter's product."""
    alpha, expected = (
        _of_module(config, *keys, module) for keys in (("alpha_pattern", "lora_alpha"), ("rank_pattern", "r"))
    )
    rule = f"`r` of {ADAPTER_CONFIG} must be the rank of the matrices, and positive."
    check(rank is not None and rank == expected and rank > 0, rule, r=expected, rank=rank)
    check_range(-LARGEST_ALPHA, LARGEST_ALPHA, lora_alpha=alpha)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(config, patterns, key, module):
    """Returns the value of a key for a module, of which a pattern may have another one, as PEFT looks it up."""
    (names, wild), parts = config[patterns], module.split(".")
    ends = [f"^{module}", *(".".join(parts[i:]) for i in range(len(parts)))]
    matching = [names[end] for end in ends if end in names]
    matching += [value for pieces, value in wild if any(_matches(pieces, end) for end in ends)]
    return min(matching, key=lambda each: each[0])[1] if matching else config.get(key)


def _by_names(config, key):
    """Reads patterns. After `^` a name is that of a whole module.

    Returns:
        A dict from a name to the place of its pattern and its value; and a list of the pieces of each name that is not
        plain, with the same pair.
    """
    names, wild = {}, []
    for place, (pattern, value) in enumerate((config.get(key) or {}).items()):
        for pieces in _names_of(pattern, key):
            if all(kind == "text" for kind, _ in pieces):
                names.setdefault("".join(text for _, text in pieces), (place, value))
            else:
                wild.append((pieces, (place, value)))
            rule = f"`{key}` in {ADAPTER_CONFIG} must hold at most {MOST_NAMES} names, {MOST_WILDCARDS} of them wild."
            check(len(wild) <= MOST_WILDCARDS and len(names) <= MOST_NAMES, rule, pattern=pattern)
    return names, wild


def _names_of(pattern, key):
    """Yields the pieces of each name in a pattern, lists of pairs of a kind and a text or a tuple of texts."""
    rule = (
        f"The keys of `{key}` in {ADAPTER_CONFIG} must be names of modules, with `|`, `^`, `$`, `\\.`, `.*`, `\\d+`, "
        "`[0-9]+` or `(a|b)`."
    )
    place, size = 0, len(pattern)
    while place <= size:
        pieces = []
        if pattern.startswith("^", place):
            pieces, place = [("text", "^")], place + 1
        while piece := PIECE.match(pattern, place):
            kind, text = piece.lastgroup, piece[piece.lastgroup].replace("\\.", ".")
            texts = text.split("|") if kind == "either" else [text]
            good = len(pieces) < MOST_PIECES and (kind == "digits" or "\\" not in text) and all(texts)
            check(good, rule, pattern=pattern)
            pieces.append((kind, tuple(texts) if kind == "either" else text))
            place = piece.end()
        place += pattern.startswith("$", place)
        check(pieces and (place == size or pattern[place] == "|"), rule, pattern=pattern)
        yield pieces
        place += 1


def _matches(pieces, text):
    """Returns whether pieces of a pattern match a whole text. Each piece looks at each character once."""
    # The places where the pieces so far can end.
    ends = {0}
    for kind, value in pieces:
        if kind == "anything":
            ends = {*range(min(ends), len(text) + 1)}
        elif kind == "digits":
            starts, ends = ends, set()
            for place, character in enumerate(text):
                if character in "0123456789" and (place in starts or place in ends):
                    ends.add(place + 1)
        else:
            texts = value if kind == "either" else (value,)
            ends = {end + len(each) for end in ends for each in texts if text.startswith(each, end)}
        if not ends:
            return False
    return len(text) in ends
