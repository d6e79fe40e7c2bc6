"""The files with which TensorFlow Serving runs a model's versions."""

import json
import re
from pathlib import Path

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.files import replaced

MODELS = "models.config"
# How long a request waits for others, in microseconds: little beside a translation, long enough to fill a batch.
WAIT = 5000
WAITING_BATCHES = 100  # more than these are refused at once instead of late
BATCHES_A_REQUEST = 32  # a request of more rows is refused; the server splits what is larger than a batch


def versions_of(folder):
    """The numbers of the exported versions in a model's folder, a set."""
    paths = Path(folder).glob("[0-9]*/saved_model.pb")
    return {int(path.parent.name) for path in paths if path.parent.name.isdigit()}


def write_server_files(folder, name=None, stable=None, canary=None, image="tensorflow/serving:latest"):
    """Writes `models.config`, `batching.config`, `monitoring.config` and `docker-compose.yml` beside the versions.

    Called again with other versions it rolls a running server forward or back: the server reads `models.config` again
    every half minute, loads and unloads what it says, and moves the labels. It moves a label only to a version that
    runs already, and refuses the whole file otherwise; so a version that a label leaves goes on running until the same
    call is made once more.

    Args:
        folder: The model's base path, with at least one exported version.
        name: The model's name in the server; the folder's when None.
        stable: The version that the label `stable` names; the newest when None.
        canary: A second version to serve, which the label `canary` names, or None.
        image: The Docker image of the server.

    Returns:
        The `Path`s of the files.

    Raises:
        ValueError: If a version is not there, `name` is no name for a server, the versions cannot run in one server,
            or a label is to move to one that does not run yet.
    """
    folder = Path(folder)
    name = folder.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(
            f"`name` must hold letters, digits, `_`, `.` and `-` alone. Received: name={name!r}."
        )
    versions = versions_of(folder)
    if not versions:
        raise ValueError(f"`folder` must hold an exported version. Received: folder={str(folder)!r}.")
    labels = {"stable": max(versions) if stable is None else stable, "canary": canary}
    labels = {label: version for label, version in labels.items() if version is not None}
    for label, version in labels.items():
        if version not in versions:
            raise ValueError(
                f"`{label}` must be one of the versions {sorted(versions)}. Received: {label}={version}."
            )
    before, running = _running(folder / MODELS)
    for label, version in labels.items():
        if before.get(label, version) != version and version not in running:
            how = "make it the canary first" if label == "stable" else "leave `canary` out first"
            raise ValueError(
                f"`{label}` must move to one of the versions that a server of {MODELS} runs, {sorted(running)}: {how}, "
                f"or remove {MODELS} and start the server anew. Received: {label}={version}."
            )
    served = {*labels.values(), *(set() if labels == before else set(before.values()) & versions)}
    described = {version: _description(folder / str(version)) for version in sorted(served)}
    for key in ("batch_sizes", "xla"):  # the server has one setting for all that it runs
        if len({str(each[key]) for each in described.values()}) > 1:
            found = ", ".join(f"version {version}: {each[key]}" for version, each in described.items())
            raise ValueError(f"What one server runs must be exported with the same {key}. Received: {found}.")
    stable = described[labels["stable"]]
    files = {
        MODELS: _models(name, labels, served),
        "batching.config": _batching(stable["batch_sizes"]),
        "monitoring.config": 'prometheus_config {\n  enable: true\n  path: "/monitoring/prometheus/metrics"\n}\n',
        "docker-compose.yml": _compose(name, image, stable["xla"]),
    }
    for file, text in files.items():
        with replaced(folder / file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / file for file in files]


def _description(version):
    try:
        found = json.loads((version / "assets.extra" / "export.json").read_text(encoding="utf-8"))
        return {key: found[key] for key in ("batch_sizes", "xla")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{version} is not an export of this library: {error!r}") from None


def _running(file):
    """The labels and the versions of the server that a `models.config` is for; none where there is no such file."""
    try:
        config = text_format.Parse(
            file.read_text(encoding="utf-8"), model_server_config_pb2.ModelServerConfig()
        )
    except FileNotFoundError:
        return {}, set()
    except (OSError, ValueError, text_format.ParseError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
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
    settings = {
        "max_batch_size": BATCHES_A_REQUEST * batch_sizes[-1],
        "max_execution_batch_size": batch_sizes[-1],
        "enable_large_batch_splitting": "true",
        "batch_timeout_micros": WAIT,
        "max_enqueued_batches": WAITING_BATCHES,
    }
    lines = [f"{setting} {{ value: {value} }}" for setting, value in settings.items()]
    return "\n".join(lines + [f"allowed_batch_sizes: {size}" for size in batch_sizes]) + "\n"


def _compose(name, image, xla):
    flags = [
        f"--model_config_file=/models/{name}/models.config",
        "--model_config_file_poll_wait_seconds=30",
        "--allow_version_labels_for_unavailable_models=true",
        "--enable_batching=true",
        f"--batching_parameters_file=/models/{name}/batching.config",
        f"--monitoring_config_file=/models/{name}/monitoring.config",
        *(["--xla_cpu_compilation_enabled=true"] if xla else []),
    ]
    return "\n".join(
        [
            "services:",
            f"  {re.sub('[^a-z0-9-]', '-', name.lower())}:",
            f"    image: {image}",
            "    restart: unless-stopped",
            "    ports:",
            '      - "8500:8500"  # gRPC',
            '      - "8501:8501"  # REST, and metrics under /monitoring/prometheus/metrics',
            "    volumes:",
            f'      - ".:/models/{name}:ro"',
            "    command:",
            *(f'      - "{flag}"' for flag in flags),
            "",
        ]
    )
