"""Writes SavedModels that a stock TensorFlow Serving runs."""

import itertools
import logging
import time
from importlib import metadata
from pathlib import Path

import keras
import tensorflow as tf
import tqdm

from keras_transformer.checks import check, check_choice, check_positive
from keras_transformer.execution import native
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.files import check_local, locked, remove_temporaries, replaced, write_json
from keras_transformer.serving.graph.saved_model import write_saved_model
from keras_transformer.serving.graph.server_graph import write_server_config
from keras_transformer.serving.graph.weights import PRECISIONS, fingerprint, quantized_copy, store_weights
from keras_transformer.serving.server.server_files import DESCRIPTION, versions_of
from keras_transformer.serving.signatures import as_called
from keras_transformer.serving.verify import check_answers, hashes
from keras_transformer.serving.warmup import MAX_REQUESTS, write_warmup
from keras_transformer.version import __version__

log = logging.getLogger(__name__)

BATCH_SIZES = (1, 8, 32)
# The smallest of the default source lengths.
SHORTEST = 16
PACKAGES = ("tensorflow-text", "sentencepiece")


class ServedGraph:
    """The graph of an export: the functions of some signatures, which a server runs.

    Args:
        servable: A `Servable`, such as a `Translator`. The graph has its strategy, constraints and limits.
        xla: False for a graph without any XLA op or compiled function, which every server runs. True for a graph that
            XLA compiles for a few fixed shapes; tensorflow_model_server then needs `--xla_cpu_compilation_enabled`.
        precision: "float32", "bfloat16" or "int8". bfloat16 stores matrices in half the bytes, and computes in float32.
            int8 stores and multiplies int8, as after `model.quantize("int8")`; the servable keeps its own weights.
            The server then needs oneDNN's operations, which TensorFlow for Linux on x86-64 has; not with `xla=True`.
        signatures: Names of the signatures to write, such as ("serving_default",). None for all but `words` of speech.
            Each takes memory of the server and seconds to load, for what it shares with no other.
        batch_sizes: Increasing ints; None for (1, 8, 32). A request with more rows than the last is answered in several
            steps. With `xla=True`, a step is padded to one of these sizes.
        source_lengths: Increasing ints, the lengths in tokens to which sources are padded with `xla=True`. The last is
            `max_source_length`. None for 16, 32, 64 and so on up to `max_source_length`; a servable that reads files
            has none.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        servable,
        xla=False,
        *,
        precision="float32",
        signatures=None,
        batch_sizes=None,
        source_lengths=None,
    ):
        longest = servable.max_source_length
        rule = "`source_lengths` is for a compiled search of texts, `xla=True`."
        check(not source_lengths or (xla and longest is not None), rule, source_lengths=source_lengths)
        check(
            not isinstance(signatures, str)
            and (not xla or signatures is None or "serving_default" in signatures),
            "`signatures` must be a list of names, with 'serving_default' where `xla=True`: its warm-up compiles all "
            "shapes.",
            signatures=signatures,
            xla=xla,
        )
        check_choice(PRECISIONS, precision=precision)
        rule = "XLA has no fast int8 product for CPUs."
        has_int8 = has_int8_weights(servable.model)
        check(not (xla and (has_int8 or precision == "int8")), rule, precision="int8", xla=xla)
        check(
            precision != "int8" or native.has_int8_product(),
            "`precision='int8'` must be exported by TensorFlow for Linux on x86-64, where no GPU is visible "
            "(CUDA_VISIBLE_DEVICES=-1).",
            devices=keras.distribution.list_devices(),
        )
        self.batch_sizes = _increasing("batch_sizes", batch_sizes or BATCH_SIZES)
        lengths = []
        if longest is not None:
            lengths = _increasing("source_lengths", source_lengths or _doubled(SHORTEST, longest))
            rule = f"`source_lengths` must end with max_source_length={longest}."
            check(not xla or lengths[-1] == longest, rule, source_lengths=lengths)
        self.xla, self.source_lengths = xla, lengths if xla else None
        self._precision, self._names = precision, signatures
        # A graph that is not compiled gains nothing from requests of other shapes.
        shapes = [(size, length) for length in lengths or [None] for size in self.batch_sizes]
        self.shapes = shapes if xla else shapes[:1]
        # A second text is shorter, and shows that padding changes nothing. Files have no padding.
        rows = 2 if lengths else 1
        self.checked_shape = (self.batch_sizes[0] if xla else rows, shapes[0][1])
        copies = precision == "int8" and not has_int8
        self.servable = servable.changed(model=quantized_copy(servable.model)) if copies else servable

    @property
    def precision(self):
        """The precision of the weights."""
        return "int8" if has_int8_weights(self.servable.model) else self._precision

    def write(self, path, warmup=True, check=True, verbose=False):
        """Writes the graph as a SavedModel.

        Args:
            path: A new `pathlib.Path`, `folder/version`. It appears whole or not at all.
            warmup: Whether to write warm-up requests, which a server answers before it serves the version.
            check: Whether to load the export and compare its answers with the model's before it appears: of each
                signature, with `xla=True` of the first one.
            verbose: Whether to show a progress bar on stderr.

        Raises:
            ValueError: If a signature is unknown, the warm-up has too many requests, the graph holds an op that a stock
                server does not have, or the export answers otherwise than the model.
        """
        started = time.monotonic()
        if warmup and len(self.shapes) > MAX_REQUESTS:
            raise ValueError(
                f"`batch_sizes` times `source_lengths` must be at most {MAX_REQUESTS}: a server refuses more warm-up "
                f"requests. Received: {len(self.batch_sizes)} times {len(self.source_lengths)}."
            )
        weights_function, module = store_weights(self.servable.model, self.precision == "bfloat16")
        module.tokenizers = list(self.servable.tokenizers)
        makers = self._makers(weights_function)
        with (
            tqdm.tqdm(total=len(makers) + 2, unit="step", disable=not verbose, leave=False) as bar,
            locked(path.parent),
        ):
            # Those of an export that was killed.
            remove_temporaries(path.parent)
            functions = {}
            with native.inference_graph():
                for name in makers:
                    bar.set_description(f"tracing {name}")
                    # Concrete functions, or `save` would trace each function once more.
                    functions[name] = makers[name].get_concrete_function()
                    bar.update()
            with replaced(path) as temporary:
                bar.set_description("saving")
                write_saved_model(module, functions, temporary, self.xla)
                bar.update()
                bar.set_description("checking")
                extra = temporary / "assets.extra"
                extra.mkdir()
                if not self.xla:
                    write_server_config(extra)
                description = self._description(functions)
                if warmup:
                    write_warmup(extra, self._requests(self.shapes, functions))
                description["files"] = hashes(temporary)
                write_json(temporary / DESCRIPTION, description)
                if check:
                    # The check frees each function when it has answered. So nothing else may hold one.
                    functions.clear()
                    self._check(temporary, {name: as_called(makers.pop(name)) for name in list(makers)})
        seconds = round(time.monotonic() - started, 3)
        log.info("exported", extra={"folder": str(path), "precision": self.precision, "seconds": seconds})

    def _makers(self, weights_function):
        """Returns the makers of the chosen signatures, a dict; raises `ValueError` for unknown names and for none."""
        signatures = self.servable.signatures(self.batch_sizes, self.source_lengths, weights_function)
        makers, chosen = signatures.functions(), self._names
        chosen = makers.keys() - {*signatures.on_request} if chosen is None else set(chosen)
        rule = f"`signatures` must be names of {list(makers)}."
        check(chosen and chosen <= makers.keys(), rule, signatures=self._names)
        return {name: maker for name, maker in makers.items() if name in chosen}

    def _requests(self, shapes, names):
        """Yields the warm-up requests of the signatures of these names."""
        return (request for request in self.servable.warmup_requests(shapes) if request[0] in names)

    def _check(self, folder, functions):
        """Raises `ValueError` unless the export in a folder answers as the functions do."""
        requests = itertools.islice(
            map(_uneven, self._requests([self.checked_shape], functions)), 1 if self.xla else None
        )
        draws = getattr(getattr(self.servable, "strategy", None), "seed", 0) is None
        check_answers(folder, functions, requests, draws, afresh=self.precision == "int8")

    def _description(self, functions):
        """Returns the content of `export.json`, a dict."""
        signatures = {}
        for name, function in functions.items():
            arguments, keywords = function.structured_input_signature
            inputs = {**{spec.name: spec for spec in arguments}, **keywords}
            signatures[name] = {
                "about": self.servable.signatures_class.descriptions[name],
                "inputs": _specs(inputs),
                "outputs": _specs(function.structured_outputs),
            }
        return {
            "format": 1,
            "signatures": signatures,
            "servable": type(self.servable).__name__,
            "arguments": self.servable.describe(),
            "longest_output": self.servable.longest_output,
            "xla": self.xla,
            "batch_sizes": self.batch_sizes,
            "source_lengths": self.source_lengths,
            "precision": self.precision,
            "weights": {
                "parameters": self.servable.model.count_params(),
                "sha256": fingerprint(self.servable.model),
            },
            "versions": {
                "keras_transformer": __version__,
                # A nightly build is a package of another name, so `metadata.version` would not find it.
                "keras": keras.__version__,
                "tensorflow": tf.__version__,
                **{name: metadata.version(name) for name in PACKAGES},
            },
        }


def _specs(tensors):
    return {name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in tensors.items()}


def path_of_new_version(folder, version):
    """Returns the `Path` of a version that does not exist yet.

    Args:
        folder: The base path of the model.
        version: Positive int.

    Raises:
        ValueError: If the version exists or is not positive, or `folder` is a URL.
    """
    check_positive(version=version)
    check_local(folder)
    path = Path(folder) / str(version)
    if path.exists():
        raise ValueError(
            f"`version` must be new; versions are never overwritten. Received: version={version}; {path} exists. "
            f"{max({version, *versions_of(folder)}) + 1} would be new."
        )
    return path


def _uneven(request):
    """Returns a request whose last text is half as long as the others."""
    signature, inputs = request
    cut = {}
    for name, values in inputs.items():
        *others, last = values
        cut[name] = [*others, last[: len(last) // 2]] if isinstance(last, str) else values
    return signature, cut


def _doubled(first, last):
    """Returns `first`, twice `first`, four times `first` and so on, as far as they are below `last`; then `last`."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def _increasing(name, sizes):
    """Returns the sizes as a list, or raises `ValueError` if they are not increasing positive ints."""
    sizes = list(sizes)
    for size in sizes:
        check_positive(**{name: size})
    if not sizes or sizes != sorted(set(sizes)):
        raise ValueError(f"`{name}` must increase. Received: {name}={sizes}.")
    return sizes
