"""The files with which TensorFlow Serving runs a model's versions."""

import json
import re
from pathlib import Path

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.files import replaced

# How long a request waits for others, in microseconds: little beside a translation, long enough to fill a batch.
WAIT = 5000
WAITING_BATCHES = 100  # more than these are refused at once instead of late


def write_server_files(folder, name=None, stable=None, canary=None, image="tensorflow/serving:latest"):
    """Writes `models.config`, `batching.config`, `monitoring.config` and `docker-compose.yml` beside the versions.

    Called again with other versions it rolls a running server forward or back: the server reads `models.config` again
    every half minute, loads and unloads what it says, and moves the labels.

    Args:
        folder: The model's base path, with at least one exported version.
        name: The model's name in the server; the folder's when None.
        stable: The version that the label `stable` names; the newest when None.
        canary: A second version to serve, which the label `canary` names, or None.
        image: The Docker image of the server.

    Returns:
        The `Path`s of the files.

    Raises:
        ValueError: If a version is not there, `name` is no name for a server, or the two versions cannot run in one
            server.
    """
    folder = Path(folder)
    name = folder.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(
            f"`name` must hold letters, digits, `_`, `.` and `-` alone. Received: name={name!r}."
        )
    versions = {
        int(path.parent.name) for path in folder.glob("[0-9]*/saved_model.pb") if path.parent.name.isdigit()
    }
    if not versions:
        raise ValueError(f"`folder` must hold an exported version. Received: folder={str(folder)!r}.")
    labels = {"stable": max(versions) if stable is None else stable, "canary": canary}
    labels = {label: version for label, version in labels.items() if version is not None}
    for label, version in labels.items():
        if version not in versions:
            raise ValueError(
                f"`{label}` must be one of the versions {sorted(versions)}. Received: {label}={version}."
            )
    described = {label: _description(folder / str(version)) for label, version in labels.items()}
    for key in ("batch_sizes", "xla"):  # the server has one setting for all that it runs
        if len({str(each[key]) for each in described.values()}) > 1:
            found = ", ".join(f"{label}: {each[key]}" for label, each in described.items())
            raise ValueError(
                f"`stable` and `canary` must be exported with the same {key}. Received: {found}."
            )
    files = {
        "models.config": _models(name, labels),
        "batching.config": _batching(described["stable"]["batch_sizes"]),
        "monitoring.config": 'prometheus_config {\n  enable: true\n  path: "/monitoring/prometheus/metrics"\n}\n',
        "docker-compose.yml": _compose(name, image, described["stable"]["xla"]),
    }
    for file, text in files.items():
        with replaced(folder / file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / file for file in files]


def _description(version):
    try:
        return json.loads((version / "assets.extra" / "export.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{version} is not an export of this library: {error}") from None


def _models(name, labels):
    config = model_server_config_pb2.ModelServerConfig()
    model = config.model_config_list.config.add(
        name=name, base_path=f"/models/{name}", model_platform="tensorflow"
    )
    model.model_version_policy.specific.versions.extend(sorted(set(labels.values())))
    model.version_labels.update(labels)
    return text_format.MessageToString(config)


def _batching(batch_sizes):
    settings = {
        "max_batch_size": batch_sizes[-1],
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
