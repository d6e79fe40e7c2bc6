"""SavedModels that a stock TensorFlow Serving runs."""

import json
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.checks import check_positive
from keras_transformer.files import locked, remove_temporaries, replaced
from keras_transformer.serving.server_files import versions_of
from keras_transformer.serving.warmup import MOST_RECORDS, write_warmup
from keras_transformer.serving.weights import fingerprint, stored
from keras_transformer.version import __version__

BATCH_SIZES = (1, 8, 32)
SHORTEST = 16  # the least of the source lengths that a compiled export pads to; each doubles the one before
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # TensorFlow's own, but a server holds no Python
# What this library uses of the ops of tensorflow-text 2.20, which TensorFlow Serving links.
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "FastWordpieceTokenizeWithOffsets",
    "NormalizeUTF8",
}
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")


def export(
    servable,
    folder,
    version=1,
    xla=False,
    *,
    weights="float32",
    batch_sizes=None,
    source_lengths=None,
    warmup=True,
):
    """Writes a SavedModel for TensorFlow Serving, `folder/version/`, that TensorFlow alone can load.

    Its signatures are those of `serving.signatures`; `assets.extra/export.json` says what they take and give, and what
    the export was made of.

    Args:
        servable: A `Servable`, such as a `Translator`: its strategy, constraints and limits are the export's.
        folder: The model's base path; created when missing.
        version: Positive int.
        xla: False for a graph that runs everywhere, without any XLA op or compiled function. True for a compiled
            search over few fixed shapes; tensorflow_model_server needs `--xla_cpu_compilation_enabled` then.
        weights: How they are stored: "float32", "bfloat16", or "int8" with a scale for each channel. The model computes
            in float32 with any of them.
        batch_sizes: Increasing ints; (1, 8, 32) when None. More rows than the last are searched in turn; a compiled
            search fills up a batch to the next of them.
        source_lengths: Increasing ints, the lengths in tokens to which a compiled search pads its sources; 16 and its
            doubles up to `max_source_length` when None.
        warmup: Whether to write the requests with which a server warms up before it answers.

    Returns:
        The `Path` of the version. It appears whole or not at all.

    Raises:
        ValueError: If the version exists or is not positive, an argument is not one of those above, or the graph
            holds what a stock server does not know.
    """
    check_positive(version=version)
    path = Path(folder) / str(version)
    if path.exists():
        raise ValueError(
            f"`version` must be new; versions are never overwritten. Received: version={version}; {path} exists. "
            f"{max({version, *versions_of(folder)}) + 1} would be new."
        )
    if source_lengths and not xla:
        raise ValueError(
            f"`source_lengths` is for a compiled search, `xla=True`. Received: source_lengths={list(source_lengths)}."
        )
    batch_sizes = _increasing("batch_sizes", batch_sizes or BATCH_SIZES)
    longest = servable.max_source_length
    if xla and longest is None:
        raise ValueError(f"`xla` is for what reads texts, no {type(servable).__name__}. Received: xla={xla}.")
    lengths = _increasing("source_lengths", source_lengths or _doubles(SHORTEST, longest or SHORTEST))
    if xla and lengths[-1] != longest:
        raise ValueError(
            f"`source_lengths` must end with max_source_length={longest}. Received: source_lengths={lengths}."
        )
    # Where nothing is compiled, a length is like another.
    shapes = [(size, length) for length in (lengths if xla else lengths[:1]) for size in batch_sizes]
    if warmup and len(shapes) > MOST_RECORDS:
        raise ValueError(
            f"`batch_sizes` times `source_lengths` must be at most {MOST_RECORDS}: a server refuses more to warm up "
            f"with. Received: {len(batch_sizes)} times {len(lengths)}."
        )
    values, module = stored(servable.model, weights)
    signatures = servable.signatures(batch_sizes, lengths if xla else None, values)
    # Traced here, once: `save` would trace what is not.
    functions = {name: function.get_concrete_function() for name, function in signatures.functions().items()}
    module.tokenizers = list(servable.tokenizers)
    with locked(folder):
        remove_temporaries(folder)  # of an export that was killed
        with replaced(path) as temporary:
            write_saved_model(module, functions, temporary, xla)
            extra = temporary / "assets.extra"
            extra.mkdir()
            description = describe(servable, functions, xla, weights, batch_sizes, lengths if xla else None)
            (extra / "export.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            if warmup:
                write_warmup(extra, servable, shapes)
    return path


def write_saved_model(module, signatures, path, xla):
    """Saves a module to a new folder.

    Args:
        module: A `tf.Module` that tracks all the signatures' variables and resources.
        signatures: A dict from name to concrete function, or `tf.function` with an input signature.
        path: The folder; must not exist.
        xla: Whether compiled functions are wanted; if not, finding one is an error.

    Raises:
        ValueError: If the graph holds an op that a stock server lacks, or an XLA op or a compiled function against
            `xla=False`.
    """
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)  # nobody trains an export
    tf.saved_model.save(module, str(path), signatures=signatures, options=options)
    _forget_gradients(path)
    found = compiled_parts(path)
    if found and not xla:
        raise ValueError(
            "The export must run where XLA is disabled, but its graph holds "
            f"{', '.join(found[:5])}. Use `xla=True` for a compiled export."
        )
    foreign = foreign_ops(path)
    if foreign:
        raise ValueError(
            f"The export must run in a stock TensorFlow Serving, which has no {', '.join(foreign[:5])}."
        )


def compiled_parts(path):
    """Names of the XLA ops and compiled functions in a SavedModel, sorted."""
    found = set()
    for graph in _graphs(path):
        found |= {
            f"compiled function {function.signature.name}"
            for function in graph.library.function
            if function.attr["_XlaMustCompile"].b
        }
        found |= {f"op {node.op}" for node in _nodes(graph) if node.op.startswith("Xla")}
        found |= {f"compiled call {node.name}" for node in _nodes(graph) if node.attr["_XlaMustCompile"].b}
    return sorted(found)


def foreign_ops(path):
    """Names of the ops of a SavedModel that neither TensorFlow nor tensorflow-text in the server has, sorted."""
    found = set()
    for graph in _graphs(path):
        own = {function.signature.name for function in graph.library.function}
        found |= {node.op for node in _nodes(graph)} - own
    known = {op for op in found if hasattr(tf.raw_ops, op) or op.startswith("Xla")} | TEXT_OPS
    return sorted(found - (known - PYTHON_OPS))


def describe(servable, functions, xla, weights, batch_sizes, source_lengths):
    """What an export is, for people and programs: what its signatures take and give, and what it was made of."""

    def specs(nest):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in nest.items()
        }

    signatures = {}
    for name, function in functions.items():
        arguments, keywords = function.structured_input_signature
        inputs = {**{spec.name: spec for spec in arguments}, **keywords}
        signatures[name] = {
            "about": servable.signatures_class.about[name],
            "inputs": specs(inputs),
            "outputs": specs(function.structured_outputs),
        }
    return {
        "format": 1,
        "signatures": signatures,
        **servable.describe(),
        "xla": xla,
        "batch_sizes": list(batch_sizes),
        "source_lengths": source_lengths and list(source_lengths),
        "weights": {
            "stored": weights,
            "parameters": servable.model.count_params(),
            "sha256": fingerprint(servable.model),
        },
        "versions": {
            "keras_transformer": __version__,
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


def _forget_gradients(path):
    """Takes the names of gradients that are not saved out of the graph: TensorFlow warns of each when it loads one."""
    saved = _parsed(path)
    for meta_graph in saved.meta_graphs:
        for node in _nodes(meta_graph.graph_def):
            node.attr.pop("_gradient_op_type", None)
    (Path(path) / "saved_model.pb").write_bytes(saved.SerializeToString(deterministic=True))


def _parsed(path):
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((Path(path) / "saved_model.pb").read_bytes())
    return saved


def _graphs(path):
    return [meta_graph.graph_def for meta_graph in _parsed(path).meta_graphs]


def _nodes(graph):
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _doubles(first, last):
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def _increasing(name, sizes):
    sizes = list(sizes)
    for size in sizes:
        check_positive(**{name: size})
    if not sizes or sizes != sorted(set(sizes)):
        raise ValueError(f"`{name}` must increase. Received: {name}={sizes}.")
    return sizes
