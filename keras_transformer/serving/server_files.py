"""Writes TensorFlow Serving's configuration files for the versions of a model."""

import json
import re
from pathlib import Path

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.checks import check_positive
from keras_transformer.files import locked, remove_temporaries, replaced
from keras_transformer.serving.containers import compose, prometheus
from keras_transformer.serving.kubernetes import kubernetes

MODELS = "models.config"
IMAGE = "tensorflow/serving:2.20.0"
# How long a request waits for others to fill its batch, in microseconds. A translation takes much longer.
WAIT_MICROSECONDS = 5000
MAX_WAITING_BATCHES = 25  # the server refuses further requests at once, not after their timeout
STEPS_PER_BATCH = 4  # the rows of a batch are this many times the export's largest batch size


def versions_of(folder):
    """Returns the numbers of the exported versions in a model's folder: a set of int."""
    paths = Path(folder).glob("[0-9]*/saved_model.pb")
    return {int(path.parent.name) for path in paths if re.fullmatch("[0-9]+", path.parent.name)}


def write_server_files(folder, name=None, stable=None, canary=None, image=IMAGE):
    """Writes the configuration files of TensorFlow Serving, Docker, Kubernetes and Prometheus beside the versions.

    Run it again with other versions to roll a running server forward or back. The server reads `models.config` every 30
    seconds, loads and unloads versions, and moves the labels.

    A server moves a label only to a version that runs already, and otherwise refuses the whole file. So a version that
    a label leaves still runs, until you call this once more with the same arguments.

    Args:
        folder: The base path of the model, with at least one exported version.
        name: Name of the model in the server; None for the folder's name.
        stable: The version with the label `stable`; None for the newest.
        canary: The version with the label `canary`, which runs beside the other; None for no such version.
        image: Docker image of the server, such as `tensorflow/serving:2.20.0`.

    Returns:
        A list of the `Path`s of the files.

    Raises:
        ValueError: If a version does not exist, `name` or `image` holds other characters than a name of a model or of
            an image may hold, the versions cannot run in one server, a label would move to a version that does not run
            yet, or another process uses the folder.
    """
    folder = Path(folder)
    name = folder.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name in (".", ".."):
        raise ValueError(
            "`name` must hold only letters, digits, `_`, `.` and `-`, and must not be `.` or `..`. "
            f"Received: name={name!r:.200}."
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*", image):
        raise ValueError(f"`image` must be the name of a Docker image. Received: image={image!r:.200}.")
    versions = versions_of(folder)
    if not versions:
        raise ValueError(f"`folder` must hold an exported version. Received: folder={str(folder)!r}.")
    with locked(folder):  # an export would remove the temporary files of this function
        remove_temporaries(folder)
        return _write(folder, name, stable, canary, image, versions)


def _write(folder, name, stable, canary, image, versions):
    """Writes the files of `write_server_files`, in a locked folder, and returns their paths."""
    labels = {"stable": max(versions) if stable is None else stable, "canary": canary}
    labels = {label: version for label, version in labels.items() if version is not None}
    for label, version in labels.items():
        if version not in versions:
            raise ValueError(
                f"`{label}` must be one of the versions {sorted(versions)}. Received: {label}={version}."
            )
    old_labels, running = _running(folder / MODELS)
    for label, version in labels.items():
        if old_labels.get(label, version) != version and version not in running:
            how = "make it the canary first" if label == "stable" else "leave `canary` out first"
            raise ValueError(
                f"`{label}` must move to one of the versions that a server of {MODELS} runs, {sorted(running)}: {how}, "
                f"or remove {MODELS} and start the server anew. Received: {label}={version}."
            )
    served = set(labels.values())
    if labels != old_labels:
        served |= set(old_labels.values()) & versions
    described = {version: _description(folder / str(version)) for version in sorted(served)}
    for key in ("batch_sizes", "xla"):  # these settings apply to the whole server
        if len({str(each[key]) for each in described.values()}) > 1:
            received = ", ".join(f"version {version}: {each[key]}" for version, each in described.items())
            raise ValueError(
                f"The versions of one server must be exported with the same {key}. Received: {received}."
            )
    stable = described[labels["stable"]]
    files = {
        MODELS: _models(name, labels, served),
        "batching.config": _batching(stable["batch_sizes"]),
        "monitoring.config": 'prometheus_config {\n  enable: true\n  path: "/monitoring/prometheus/metrics"\n}\n',
        "docker-compose.yml": compose(name, image, stable["xla"]),
        "docker-compose.gpu.yml": compose(name, image, stable["xla"], gpu=True),
        "kubernetes.yml": kubernetes(
            name, image, stable["xla"], max(each["bytes"] for each in described.values())
        ),
        "prometheus.yml": prometheus(name),
    }
    for file, text in files.items():
        with replaced(folder / file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / file for file in files]


def _description(version):
    """Reads `batch_sizes` and `xla` of an exported version, and estimates the `bytes` that it takes in memory."""
    try:
        description = json.loads((version / "assets.extra" / "export.json").read_text(encoding="utf-8"))
        sizes, xla = list(description["batch_sizes"]), description["xla"]
        check_positive(**{f"batch_sizes[{i}]": size for i, size in enumerate(sizes)})
        if not sizes or not isinstance(xla, bool):
            raise ValueError(f"batch_sizes={sizes}, xla={xla!r:.200}")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{version} is not an export of this library: {error!r:.500}") from None
    stored = sum(file.stat().st_size for file in version.rglob("*") if file.is_file())
    # A server keeps bfloat16 as it is stored, and as float32, in which it computes.
    return {
        "batch_sizes": sizes,
        "xla": xla,
        "bytes": stored * (3 if description.get("precision") == "bfloat16" else 1),
    }


def _running(file):
    """Reads a `models.config`. Without a file both results are empty.

    Args:
        file: Path of the file.

    Returns:
        A dict from label to version, and the set of the versions that run.
    """
    try:
        config = text_format.Parse(
            file.read_text(encoding="utf-8"), model_server_config_pb2.ModelServerConfig()
        )
    except FileNotFoundError:
        return {}, set()
    except (OSError, ValueError, text_format.ParseError) as error:
        raise ValueError(f"{file} cannot be read: {error!s:.500}") from None
    models = config.model_config_list.config
    labels = {label: version for model in models for label, version in model.version_labels.items()}
    return labels, {version for model in models for version in model.model_version_policy.specific.versions}


def _models(name, labels, versions):
    config = model_server_config_pb2.ModelServerConfig()
    model = config.model_config_list.config.add(
        name=name, base_path=f"/models/{name}", model_platform="tensorflow"
    )
    model.model_version_policy.specific.versions.extend(sorted(versions))
    model.version_labels.update(labels)
    return text_format.MessageToString(config)


def _batching(batch_sizes):
    """Returns the text of `batching.config`.

    Nothing is split: the server would join the parts of a request without a look at their widths, and the parts of an
    answer differ in width. Nothing is padded: the graph itself computes a few rows at a time, and a compiled graph pads
    them to one of its sizes.
    """
    settings = {
        "max_batch_size": STEPS_PER_BATCH * batch_sizes[-1],
        "batch_timeout_micros": WAIT_MICROSECONDS,
        "max_enqueued_batches": MAX_WAITING_BATCHES,
    }
    return "".join(f"{setting} {{ value: {value} }}\n" for setting, value in settings.items())
