"""Checks exports: their files, their signatures and their answers."""

import contextlib
import gc
import logging
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  # the operations of the tokenizers, which a server has

# The public function of this loader warns that it is old. Servers load exports in this way.
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from keras_transformer.checks import LONGEST, printable
from keras_transformer.execution import native
from keras_transformer.serving.graph.server_graph import leave_signature, session_config
from keras_transformer.serving.server.server_files import DESCRIPTION, description_of, models_in, versions_of
from keras_transformer.serving.warmup import first_warmup_request
from keras_transformer.untrusted import sha256_of

log = logging.getLogger(__name__)

# A request is timed at most so often. No answer begins after so many seconds.
TIMED_ANSWERS, LONGEST_TIMING = 5, 2.0

# Answers of one graph on one machine differ only by the rounding of sums in another order.
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}


def verify(folder):
    """Checks one exported version, all versions of a model, or those of several models.

    For each version: every file has the bytes that the export wrote, and no file was added; a session loads it, as
    in a server; its signatures are those of its description; and each signature answers a request.

    Args:
        folder: Path of a version, such as `models/en_de/1`; the base path of a model, such as `models/en_de`; or a
            folder of such base paths.

    Returns:
        The paths of the checked versions, a list of `Path`.

    Raises:
        ValueError: If the folder holds no export, or a check fails.
    """
    folder = Path(folder)
    if (folder / "saved_model.pb").is_file():
        paths = [folder]
    else:
        models = [folder] if versions_of(folder) else [model.path for model in models_in(folder).values()]
        paths = [model / str(version) for model in models for version in sorted(versions_of(model))]
    for path in paths:
        _verify_version(path)
        log.info("verified", extra={"folder": str(path)})
    return paths


def longest_request(path):
    """Says what the longest request to an export can cost.

    Args:
        path: Path of the version.

    Returns:
        A str without a full stop; None if the export writes no text.

    Raises:
        ValueError: If the folder holds no export.
    """
    longest = _description(path).get("longest_output")
    if not isinstance(longest, int):
        return None
    return f"an answer has at most {longest} tokens: the longest request takes {longest} steps"


class RequestTime(NamedTuple):
    """How long a request took: the signature, the rows of the request, and the median of several answers."""

    signature: str
    rows: int
    milliseconds: float


def time_of_request(path):
    """Measures how long a verified export takes for its first warm-up request, with the threads of this process.

    Args:
        path: Path of the version.

    Returns:
        `RequestTime`; None if the export has no warm-up request.

    Raises:
        ValueError: If the warm-up request cannot be read or answered.
    """
    request = first_warmup_request(Path(path) / DESCRIPTION.parent)
    if request is None:
        return None
    name, inputs = request
    seconds = []
    try:
        with contextlib.closing(Served(path, only=name)) as served:
            # The first answer takes longer.
            served.answer(name, inputs)
            while len(seconds) < TIMED_ANSWERS and sum(seconds) < LONGEST_TIMING:
                begun = time.perf_counter()
                served.answer(name, inputs)
                seconds.append(time.perf_counter() - begun)
    except Exception as error:
        # TensorFlow raises errors of many classes.
        raise ValueError(f"{path} does not answer its first warm-up request: {str(error)[:200]}") from error
    return RequestTime(name, max(map(len, inputs.values())), 1000 * statistics.median(seconds))


def _description(path):
    """Reads the description of an export, a dict, whose `files` and `signatures` are dicts."""
    names = ("files", "signatures")
    return description_of(
        path, lambda described: {**described, **{name: dict(described[name]) for name in names}}
    )


def _verify_version(path):
    description = _description(path)
    files, signatures = description["files"], description["signatures"]
    there = hashes(path)
    changed = sorted(
        name for name in {*files, *there} if there.get(name) is None or files.get(name) != there[name]
    )
    if changed:
        raise ValueError(
            f"{path} must hold the files that the export wrote. Changed, missing or added: "
            f"{printable(', '.join(changed[:5]), LONGEST)}."
        )
    try:
        served = Served(path)
    except Exception as error:
        # TensorFlow raises errors of many classes.
        raise ValueError(f"{path} cannot be loaded: {str(error)[:200]}") from error
    with contextlib.closing(served):
        _verify_signatures(path, served, signatures)


def _verify_signatures(path, served, signatures):
    if served.signatures.keys() != signatures.keys():
        raise ValueError(
            f"{path} must have the signatures {sorted(signatures)}. Received: {sorted(served.signatures)}."
        )
    for name, signature in signatures.items():
        try:
            expected = {key: spec["dtype"] for key, spec in signature["outputs"].items()}
            outputs = served.answer(name, {key: _sample(spec) for key, spec in signature["inputs"].items()})
        except Exception as error:
            raise ValueError(f"{path}, signature {name!r}, does not answer: {str(error)[:200]}") from error
        for key, dtype in expected.items():
            received = tf.as_dtype(outputs[key].dtype).name if key in outputs else None
            if received != dtype or outputs[key].shape[:1] != (1,):
                raise ValueError(
                    f"{path}, signature {name!r}, must answer one row with {key!r} of dtype {dtype!r:.200}. "
                    f"Received: {outputs.get(key)!r:.200}."
                )


def hashes(path):
    """Computes the SHA-256 of each file of an export but its description.

    Args:
        path: Path of the version.

    Returns:
        A dict from a file's path in the folder to its hash in hexadecimal, both str; None for what is neither a file
        nor a folder, such as a link to a folder.
    """
    hashes_by_name = {}
    for file in sorted(Path(path).rglob("*")):
        name = file.relative_to(path)
        if name == DESCRIPTION or (file.is_dir() and not file.is_symlink()):
            continue
        hashes_by_name[name.as_posix()] = sha256_of(file) if file.is_file() else None
    return hashes_by_name


def _sample(spec):
    """Makes an input with one row, a NumPy array: the text "a", or zeros."""
    shape = [1, *(size or 1 for size in spec["shape"][1:])]
    return np.full(shape, "a" if spec["dtype"] == "string" else 0, tf.as_dtype(spec["dtype"]).as_numpy_dtype)


class Served:
    """An export in a session, as a server has it.

    Args:
        path: Path of the version.
        only: Name of the one signature to load; None for all.
    """

    def __init__(self, path, only=None):
        config = session_config(Path(path) / DESCRIPTION.parent)
        loader, graph = SavedModelLoader(str(path)), tf.Graph()
        loaded = loader.get_meta_graph_def_from_tags(["serve"])
        if only is not None:
            leave_signature(loaded, only)
        self.signatures = {
            name: each for name, each in loaded.signature_def.items() if not name.startswith("__")
        }
        saver, _ = loader.load_graph(graph, ["serve"])
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        with graph.as_default():
            loader.restore_variables(self._session, saver)
            loader.run_init_ops(self._session, ["serve"])

    def answer(self, name, inputs):
        """Returns what a signature answers, a dict of NumPy arrays, for a dict of arrays."""
        signature = self.signatures[name]
        return self._session.run(
            {key: info.name for key, info in signature.outputs.items()},
            {signature.inputs[key].name: value for key, value in inputs.items()},
        )

    def close(self):
        """Frees what the session holds."""
        self._session.close()


def check_answers(path, functions, requests, draws=False, afresh=False):
    """Loads an export, and checks that it answers as the functions that it was made of.

    Args:
        path: Path of the export.
        functions: A dict from a signature's name to a function of its inputs by name.
        requests: An iterable of pairs: a signature's name, and a dict of its inputs.
        draws: Whether the answers are drawn at random, so that only their dtypes can be compared.
        afresh: Whether to take each function out of `functions` when it has answered, and to load the export again for
            each request. A function or a session that has run holds a copy of the int8 weights. So there is one copy,
            and one of each function that several of these call, such as a search, until the last of them has answered.

    Raises:
        ValueError: If an answer differs.
    """
    requests, answers = list(requests), []
    # To optimize a function takes longer than to run it once.
    with native.optimized_quickly(passes=0):
        for name, inputs in requests:
            function = functions[name]
            outputs = function(**{key: tf.constant(value) for key, value in inputs.items()})
            answers.append({key: value.numpy() for key, value in outputs.items()})
            if afresh:
                del functions[name], function
                gc.collect()  # functions are in cycles
    served = None if afresh else Served(path)
    for (name, inputs), expected in zip(requests, answers, strict=True):
        if afresh:
            with contextlib.closing(Served(path, only=name)) as alone:
                answer = alone.answer(name, inputs)
        else:
            answer = served.answer(name, inputs)
        for key in expected:
            if not _equal(expected[key], answer[key], draws):
                raise ValueError(
                    f"The export must answer as the model does in Python. Received: {name!r}, output {key!r}: "
                    f"{answer[key]!r:.200}, in Python {expected[key]!r:.200}."
                )


def _equal(expected, answer, draws):
    # The widths may differ, too.
    if draws:
        return expected.dtype == answer.dtype and len(expected) == len(answer)
    if expected.dtype != answer.dtype or expected.shape != answer.shape:
        return False
    if expected.dtype.kind != "f":
        return bool((expected == answer).all())
    return bool(np.allclose(expected, answer, equal_nan=True, **TOLERANCE))
