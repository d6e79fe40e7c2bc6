"""Writes TensorFlow Serving's configuration files for the versions of a model, or of several."""

import re
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.checks import check, check_count
from keras_transformer.files import locked, remove_temporaries
from keras_transformer.serving.server.containers import BATCHING, POD_BATCHING, Server, compose
from keras_transformer.serving.server.kubernetes import BATCHES_PER_CPU, cpus_of, kubernetes
from keras_transformer.serving.server.monitoring import ALERTS, alerts, dashboard, prometheus
from keras_transformer.serving.server.written import settings_written, write_unchanged
from keras_transformer.untrusted import read_json, read_text

DESCRIPTION = Path("assets.extra") / "export.json"
MODELS = "models.config"
IMAGE = "tensorflow/serving:2.20.0"
# How long a request waits for others to fill its batch, in microseconds. A translation takes much longer.
WAIT_MICROSECONDS = 5000
# An export may name this many rows. The server keeps their multiples in 64 bits.
LARGEST_BATCH = 2**31 - 1
# The server refuses further requests at once, not after their timeout.
MAX_WAITING_BATCHES = 25
# The rows of a batch are this many times the largest batch size of the export.
STEPS_PER_BATCH = 4


def versions_of(folder):
    """Returns the numbers of the exported versions in a model's folder: a set of int."""
    paths = Path(folder).glob("[0-9]*/saved_model.pb")
    return {int(path.parent.name) for path in paths if re.fullmatch("[0-9]{1,18}", path.parent.name)}


def write_server_files(folder, name=None, stable=None, canary=None, image=None):
    """Writes the configuration files of TensorFlow Serving, Docker, Kubernetes, Prometheus and Grafana for exports.

    A file that was changed since is kept, and a warning names it and the file `NAME.new` beside it, which holds what
    this function would write. `models.config` alone is always written, because it is what moves.

    Run it again with other versions to roll a running server forward or back. The server reads `models.config` every 30
    seconds, loads and unloads versions, and moves the labels.

    A server moves a label only to a version that runs already, and otherwise refuses the whole file. So a version that
    a label leaves still runs, until you call this once more with the same arguments.

    One server can hold several models, such as the two directions of a pair of languages: `folder` is then the folder
    of their base paths. A model that neither `stable` nor `canary` names keeps its labels; a new one gets its newest
    version as `stable`; one whose folder is gone is removed.

    Args:
        folder: The base path of the model, with at least one exported version; or a folder of such base paths.
        name: Name of the model in the server; None for that of the files that are there, else the folder's. Several
            models have the names of their folders, and this is the name of the server.
        stable: The version with the label `stable`; None for the newest. Of several models a dict from name to version.
        canary: The version with the label `canary`, which runs at the same time; None for no such version. Of several
            models a dict from name to version. A model that only one of the two dicts names gets the default of the
            other.
        image: Docker image of the server; None for that of the files that are there, else `tensorflow/serving:2.20.0`.

    Returns:
        A list of the `Path`s of the written files.

    Raises:
        ValueError: If a version or a model does not exist, `name` or `image` holds other characters than a name of a
            model or of an image may hold, the versions cannot run in one server, a label would move to a version that
            does not run yet, or another process uses the folder.
    """
    folder = Path(folder)
    before = settings_written(folder)
    name = before.get("name", folder.resolve().name) if name is None else name
    image = before.get("image", IMAGE) if image is None else image
    rule = "`image` must be the name of a Docker image."
    check(re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.:/@-]*", image), rule, image=image)
    if versions_of(folder):
        root, models = f"/models/{name}", {name: _Model(folder, f"/models/{name}")}
        stable, canary = (each if isinstance(each, dict) else {name: each} for each in (stable, canary))
    else:
        root, models = "/models", models_in(folder)
        stable, canary = ({} if each is None else each for each in (stable, canary))
    for label, versions in {"stable": stable, "canary": canary}.items():
        check(
            isinstance(versions, dict) and versions.keys() <= models.keys(),
            f"`{label}` must be a dict from the name of a model to its version; the models are {', '.join(models)}.",
            **{label: versions},
        )
    for each in (name, *models):
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", each) or each in (".", ".."):
            rule = "only letters, digits, `_`, `.` and `-`, and must not be `.` or `..`."
            check(each != name, f"`name` must hold {rule}", name=each)
            check(False, f"`folder` must hold models whose names hold {rule}", name=each)
    # Without the lock, an export would remove the temporary files of this function.
    with locked(folder):
        remove_temporaries(folder)
        running = _running(folder / MODELS)
        for each, model in models.items():
            labels, versions = running.get(each, ({}, set()))
            if each in stable or each in canary or not labels:
                labels, versions = _moved(model, labels, versions, stable.get(each), canary.get(each))
            models[each] = model._replace(labels=labels, versions=versions)
        return _write(folder, name, root, models, image)


class _Model(NamedTuple):
    """A model of a server: its base path here and in the container, its labels, and the versions that run."""

    path: Path
    base_path: str
    labels: dict | None = None
    versions: set | None = None


def models_in(folder):
    """Returns the models whose base paths are in a folder: a dict from name to `_Model`."""
    paths = sorted(path for path in folder.glob("*") if versions_of(path))
    rule = "`folder` must hold an exported version, or folders of models that hold one."
    check(paths, rule, folder=str(folder))
    return {path.name: _Model(path, f"/models/{path.name}") for path in paths}


def _moved(model, old_labels, running, stable, canary):
    """Moves the labels of a model.

    Args:
        model: A `_Model`.
        old_labels: A dict from label to version.
        running: The set of the versions that run.
        stable: The version with the label `stable`, or None.
        canary: The version with the label `canary`, or None.

    Returns:
        The new labels, a dict, and the set of the versions that run with them.

    Raises:
        ValueError: If a version does not exist, or does not run yet.
    """
    versions = versions_of(model.path)
    labels = {"stable": max(versions) if stable is None else stable, "canary": canary}
    labels = {label: version for label, version in labels.items() if version is not None}
    for label, version in labels.items():
        if version not in versions:
            raise ValueError(
                f"`{label}` must be one of the versions {sorted(versions)}. Received: {label}={version}, "
                f"in {model.path}."
            )
        if old_labels.get(label, version) != version and version not in running:
            how = "make it the canary first" if label == "stable" else "leave `canary` out first"
            raise ValueError(
                f"`{label}` must move to one of the versions that a server of {MODELS} runs, {sorted(running)}: {how}, "
                f"or remove {MODELS} and restart the server. Received: {label}={version}, in {model.path}."
            )
    served = set(labels.values())
    if labels != old_labels:
        served |= set(old_labels.values()) & versions
    return labels, served


def _write(folder, name, root, models, image):
    """Writes the files of `write_server_files`, in a locked folder, and returns their paths."""
    described = {
        (each, version): _description(model.path / str(version))
        for each, model in models.items()
        for version in sorted(model.versions)
    }
    # These settings apply to the whole server.
    for key in ("batch_sizes", "xla"):
        if len({str(each[key]) for each in described.values()}) > 1:
            received = ", ".join(
                f"{f'{model} ' if len(models) > 1 else ''}version {version}: {each[key]}"
                for (model, version), each in described.items()
            )
            raise ValueError(
                f"The versions of one server must be exported with the same {key}. Received: {received}."
            )
    first = next(iter(described.values()))
    largest = [
        max(described[each, version]["bytes"] for version in model.versions) for each, model in models.items()
    ]
    # A second version of a model runs while its label moves.
    weights = max(sum(each["bytes"] for each in described.values()), sum(largest) + max(largest))
    server = Server(name, root, list(models), image, first["xla"], weights)
    files = {
        MODELS: _models(models),
        BATCHING: _batching(first["batch_sizes"]),
        # A server computes as many batches at once as its machine has cores, whatever the limit of the container.
        POD_BATCHING: _batching(first["batch_sizes"], num_batch_threads=BATCHES_PER_CPU * cpus_of(server)),
        "monitoring.config": 'prometheus_config {\n  enable: true\n  path: "/monitoring/prometheus/metrics"\n}\n',
        "docker-compose.yml": compose(server),
        "docker-compose.gpu.yml": compose(server, gpu=True),
        "kubernetes.yml": kubernetes(server),
        "prometheus.yml": prometheus(name),
        ALERTS: alerts(name),
        "dashboard.json": dashboard(name),
    }
    return write_unchanged(folder, files, MODELS, name=name, image=image)


def description_of(version, checked):
    """Reads what an export says of itself.

    Args:
        version: Path of the version.
        checked: A function of the dict in `export.json`, which raises `ValueError`, `TypeError` or `KeyError` for one
            that cannot be right.

    Returns:
        What the function returns.

    Raises:
        ValueError: If there is no such file, or it is not one of this library.
    """
    try:
        return checked(read_json(Path(version) / DESCRIPTION))
    except (ValueError, TypeError, KeyError) as error:
        reason = f"{error!r:.500}"
    if not (Path(version) / DESCRIPTION).exists():
        reason = (
            f"it has no {DESCRIPTION}. Keras's `model.export` writes none; the `export` of a servable does"
        )
    raise ValueError(f"{version} is not an export of this library: {reason}")


def _description(version):
    """Reads `batch_sizes` and `xla` of an exported version, and estimates the `bytes` that it takes in memory."""

    def checked(description):
        sizes, xla = list(description["batch_sizes"]), description["xla"]
        check_count(1, LARGEST_BATCH, **{f"batch_sizes[{i}]": size for i, size in enumerate(sizes)})
        if not sizes or not isinstance(xla, bool):
            raise ValueError(f"batch_sizes={sizes}, xla={xla!r:.200}")
        return sizes, xla, description.get("precision")

    sizes, xla, precision = description_of(version, checked)
    stored = sum(file.stat().st_size for file in version.rglob("*") if file.is_file())
    # A server keeps bfloat16 as it is stored, and as float32, in which it computes.
    return {"batch_sizes": sizes, "xla": xla, "bytes": stored * (3 if precision == "bfloat16" else 1)}


def _running(file):
    """Reads a `models.config`. Without a file the result is empty.

    Args:
        file: Path of the file.

    Returns:
        A dict from the name of a model to its labels, a dict from label to version, and its versions that run, a set.
    """
    try:
        config = text_format.Parse(read_text(file), model_server_config_pb2.ModelServerConfig())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, text_format.ParseError) as error:
        raise ValueError(f"{file} cannot be read: {error!s:.500}") from None
    return {
        model.name: (dict(model.version_labels), set(model.model_version_policy.specific.versions))
        for model in config.model_config_list.config
    }


def _models(models):
    """Returns the text of `models.config` for a dict from name to `_Model`."""
    config = model_server_config_pb2.ModelServerConfig()
    for name, model in models.items():
        each = config.model_config_list.config.add(
            name=name, base_path=model.base_path, model_platform="tensorflow"
        )
        each.model_version_policy.specific.versions.extend(sorted(model.versions))
        each.version_labels.update(model.labels)
    return text_format.MessageToString(config)


def _batching(batch_sizes, **more):
    """Returns the text of `batching.config`, with `more` settings.

    Nothing is split: the server would join the parts of a request without a look at their widths, and the parts of an
    answer differ in width. Nothing is padded: the graph itself computes a few rows at a time, and a compiled graph pads
    them to one of its sizes.
    """
    settings = {
        "max_batch_size": STEPS_PER_BATCH * batch_sizes[-1],
        "batch_timeout_micros": WAIT_MICROSECONDS,
        "max_enqueued_batches": MAX_WAITING_BATCHES,
        **more,
    }
    return "".join(f"{setting} {{ value: {value} }}\n" for setting, value in settings.items())
