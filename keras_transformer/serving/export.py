"""Writes SavedModels that a stock TensorFlow Serving runs."""

import itertools
import json
import logging
import time
from importlib import metadata
from pathlib import Path

import keras
import tensorflow as tf
import tqdm

from keras_transformer.checks import check_positive
from keras_transformer.execution import native
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.files import check_local, locked, remove_temporaries, replaced
from keras_transformer.serving.graph.saved_model import write_saved_model
from keras_transformer.serving.graph.server_graph import write_server_config
from keras_transformer.serving.graph.weights import PRECISIONS, fingerprint, quantized_copy, store_weights
from keras_transformer.serving.server.server_files import DESCRIPTION, versions_of
from keras_transformer.serving.verify import check_answers, hashes
from keras_transformer.serving.warmup import MAX_REQUESTS, write_warmup
from keras_transformer.version import __version__

log = logging.getLogger(__name__)

BATCH_SIZES = (1, 8, 32)
# The smallest of the default source lengths.
SHORTEST = 16
PACKAGES = ("tensorflow-text", "sentencepiece")


def export(
    servable,
    folder,
    version=1,
    xla=False,
    *,
    precision="float32",
    signatures=None,
    batch_sizes=None,
    source_lengths=None,
    warmup=True,
    check=True,
    verbose=False,
):
    """Writes a SavedModel for TensorFlow Serving, `folder/version/`. TensorFlow and tensorflow-text can load it.

    `assets.extra/export.json` describes it: the inputs and outputs of each signature, the strategy, the limits, the
    largest number of tokens of an answer (`longest_output`), and the versions of the packages.

    Args:
        servable: A `Servable`, such as a `Translator`. The export has its strategy, constraints and limits.
        folder: The base path of the model; created when missing.
        version: Positive int.
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
            `max_source_length`. None for 16, 32, 64 and so on up to `max_source_length`.
        warmup: Whether to write warm-up requests, which a server answers before it serves the version.
        check: Whether to load the export and compare its answers with the model's before it appears: of each signature,
            with `xla=True` of the first one.
        verbose: Whether to show a progress bar on stderr.

    Returns:
        The `Path` of the version. It appears whole or not at all.

    Raises:
        ValueError: If the version exists or is not positive, an argument is out of range, the graph holds an op that
            a stock server does not have, or the export answers otherwise than the model.
    """
    started = time.monotonic()
    path = path_of_new_version(folder, version)
    if source_lengths and not xla:
        raise ValueError(
            "`source_lengths` is for a compiled search, `xla=True`. "
            f"Received: source_lengths={list(source_lengths)}."
        )
    if isinstance(signatures, str) or (
        xla and signatures is not None and "serving_default" not in signatures
    ):
        raise ValueError(
            "`signatures` must be a list of names, with 'serving_default' where `xla=True`: its warm-up compiles all "
            f"shapes. Received: signatures={signatures!r:.200}, xla={xla}."
        )
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {PRECISIONS}. Received: precision={precision!r}.")
    if precision == "int8" and xla:
        raise ValueError("XLA has no fast int8 product for CPUs. Received: precision='int8', xla=True.")
    if precision == "int8" and not native.has_int8_product():
        raise ValueError(
            "`precision='int8'` must be exported by TensorFlow for Linux on x86-64, where no GPU is visible "
            f"(CUDA_VISIBLE_DEVICES=-1). Received: devices={keras.distribution.list_devices()}."
        )
    batch_sizes = _increasing("batch_sizes", batch_sizes or BATCH_SIZES)
    longest = servable.max_source_length
    if xla and longest is None:
        raise ValueError(
            f"`xla` is for servables that read texts, no {type(servable).__name__}. Received: xla={xla}."
        )
    lengths = _increasing("source_lengths", source_lengths or _doubled(SHORTEST, longest or SHORTEST))
    if xla and lengths[-1] != longest:
        raise ValueError(
            f"`source_lengths` must end with max_source_length={longest}. Received: source_lengths={lengths}."
        )
    shapes = [(size, length) for length in lengths for size in batch_sizes]
    if not xla:
        # A graph that is not compiled gains nothing from other shapes.
        shapes = shapes[:1]
    if warmup and len(shapes) > MAX_REQUESTS:
        raise ValueError(
            f"`batch_sizes` times `source_lengths` must be at most {MAX_REQUESTS}: a server refuses more warm-up "
            f"requests. Received: {len(batch_sizes)} times {len(lengths)}."
        )
    if precision == "int8" and not has_int8_weights(servable.model):
        servable = servable.changed(model=quantized_copy(servable.model))
    narrow = precision == "bfloat16" and not has_int8_weights(servable.model)
    weights_function, module = store_weights(servable.model, narrow)
    module.tokenizers = list(servable.tokenizers)
    makers = servable.signatures(batch_sizes, lengths if xla else None, weights_function).functions()
    makers = _chosen(makers, signatures, servable.signatures_class.on_request)
    with (
        tqdm.tqdm(total=len(makers) + 2, unit="step", disable=not verbose, leave=False) as bar,
        locked(folder),
    ):
        # Those of an export that was killed.
        remove_temporaries(folder)
        functions = {}
        with native.inference_graph():
            for name in list(makers):
                bar.set_description(f"tracing {name}")
                # Concrete functions, or `save` would trace each function once more.
                functions[name] = makers.pop(name).get_concrete_function()
                bar.update()
        with replaced(path) as temporary:
            bar.set_description("saving")
            write_saved_model(module, functions, temporary, xla)
            bar.update()
            bar.set_description("checking")
            extra = temporary / "assets.extra"
            extra.mkdir()
            if not xla:
                write_server_config(extra)
            description = _description(
                servable, functions, xla, precision, batch_sizes, lengths if xla else None
            )
            if warmup:
                write_warmup(extra, _requests(servable, shapes, functions))
            description["files"] = hashes(temporary)
            (temporary / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            if check:
                requests = _requests(servable, [(batch_sizes[0] if xla else 2, lengths[0])], functions)
                requests = itertools.islice(map(_uneven, requests), 1 if xla else None)
                draws = getattr(getattr(servable, "strategy", None), "seed", 0) is None
                check_answers(
                    temporary, functions, requests, draws, afresh=description["precision"] == "int8"
                )
    seconds = round(time.monotonic() - started, 3)
    log.info(
        "exported", extra={"folder": str(path), "precision": description["precision"], "seconds": seconds}
    )
    return path


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


def _requests(servable, shapes, names):
    """Yields the warm-up requests of the signatures of these names."""
    return (request for request in servable.warmup_requests(shapes) if request[0] in names)


def _uneven(request):
    """Returns a request whose last text is half as long as the others."""
    signature, inputs = request
    cut = {}
    for name, values in inputs.items():
        *others, last = values
        cut[name] = [*others, last[: len(last) // 2]] if isinstance(last, str) else values
    return signature, cut


def _chosen(makers, signatures, on_request):
    """Returns the makers of the chosen signatures; raises `ValueError` for unknown names and for none.

    Args:
        makers: A dict from each name to a function.
        signatures: List of names; None for all but those of `on_request`.
        on_request: Names.
    """
    chosen = makers.keys() - {*on_request} if signatures is None else set(signatures)
    if not chosen or not chosen <= makers.keys():
        raise ValueError(
            f"`signatures` must be names of {list(makers)}. Received: signatures={signatures!r:.200}."
        )
    return {name: maker for name, maker in makers.items() if name in chosen}


def _description(servable, functions, xla, precision, batch_sizes, source_lengths):
    """Returns the content of `export.json`, a dict."""

    def specs(tensors):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in tensors.items()
        }

    signatures = {}
    for name, function in functions.items():
        arguments, keywords = function.structured_input_signature
        inputs = {**{spec.name: spec for spec in arguments}, **keywords}
        signatures[name] = {
            "about": servable.signatures_class.descriptions[name],
            "inputs": specs(inputs),
            "outputs": specs(function.structured_outputs),
        }
    return {
        "format": 1,
        "signatures": signatures,
        "servable": type(servable).__name__,
        "arguments": servable.describe(),
        "longest_output": servable.longest_output,
        "xla": xla,
        "batch_sizes": batch_sizes,
        "source_lengths": source_lengths,
        "precision": "int8" if has_int8_weights(servable.model) else precision,
        "weights": {
            "parameters": servable.model.count_params(),
            "sha256": fingerprint(servable.model),
        },
        "versions": {
            "keras_transformer": __version__,
            # A nightly build is a package of another name, so `metadata.version` would not find it.
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


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
