"""The files that run TensorFlow Serving with Docker. They are JSON, which is valid YAML and needs no quotes by hand."""

import hashlib
import json
import math
import re
from typing import NamedTuple

# Number of characters. The name of a Service has five more, and at most 63.
LONGEST_NAME = 58
METRICS = "/monitoring/prometheus/metrics"
# The user `nobody`: the server writes no file.
USER = 65534
GIB = 2**30
# Memory of the server itself, and of the batches that all cores compute.
COMPOSE_GIB = 8
# Seconds after which the server ends a request over REST.
LONGEST_REQUEST = 60
# The files that say how requests are joined: of a server that has all cores of its machine, and of a pod.
BATCHING = "batching.config"
POD_BATCHING = "batching.pod.config"


class Server(NamedTuple):
    """A server of one model or of several.

    name: Name of the server: that of its only model, or of the folder of its models.
    folder: Path in the container of the folder with the server's files.
    models: List of the names of the models.
    image: Docker image of the server for CPUs.
    xla: Whether the exports are compiled with XLA.
    weights_bytes: Number of bytes that the weights take in memory: those of all versions that run, and at least those
        of the largest version of each model and of the largest of all once more, for the version that a label moves to.
    """

    name: str
    folder: str
    models: list
    image: str
    xla: bool
    weights_bytes: int


def compose(server, gpu=False):
    """Returns the text of `docker-compose.yml`, or of `docker-compose.gpu.yml`.

    Args:
        server: A `Server`.
        gpu: Whether the server uses a GPU.
    """
    service = {
        "image": _gpu_image(server.image) if gpu else server.image,
        "restart": "unless-stopped",
        # gRPC; then REST, with metrics. Both have no password, and the port of gRPC also takes new configurations, so
        # they are open to this machine only.
        "ports": [f"127.0.0.1:{port}:{port}" for port in (8500, 8501)],
        "volumes": [f".:{server.folder}:ro"],
        # The server writes no file, and needs no right of its own. Its memory is bounded, and so are its threads.
        "user": f"{USER}:{USER}",
        "read_only": True,
        "tmpfs": ["/tmp:size=64m"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": f"{COMPOSE_GIB + math.ceil(server.weights_bytes / GIB)}g",
        "pids_limit": 4096,
        "command": command(server, gpu),
        "healthcheck": {
            # The image has bash and grep, but no client of HTTP.
            "test": ["CMD", "bash", "-c", health(server)],
            "interval": "10s",
            "timeout": "5s",
            "start_period": "5m",
        },
    }
    if gpu:
        device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return json_text({"services": {resource_name(server.name): service}})


def health(server):
    """Returns a command of bash that succeeds if a version of each model of a `Server` answers requests."""

    def answers(name):
        request = f"GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n"
        return f"exec 3<>/dev/tcp/127.0.0.1/8501 && printf '{request}' >&3 && grep -q '\"AVAILABLE\"' <&3"

    return " && ".join(map(answers, server.models))


def command(server, gpu=False, batching=BATCHING):
    """Returns the options of the server, a list of str.

    Args:
        server: A `Server`.
        gpu: Whether the server uses a GPU.
        batching: Name of the file that says how requests are joined.
    """
    folder = server.folder
    return [
        f"--model_config_file={folder}/models.config",
        "--model_config_file_poll_wait_seconds=30",
        "--allow_version_labels_for_unavailable_models=true",
        "--enable_batching=true",
        f"--batching_parameters_file={folder}/{batching}",
        f"--monitoring_config_file={folder}/monitoring.config",
        # The server's default is half of the client's timeout.
        f"--rest_api_timeout_in_ms={1000 * LONGEST_REQUEST}",
        *([f"--xla_{'gpu' if gpu else 'cpu'}_compilation_enabled=true"] if server.xla else []),
    ]


def _gpu_image(image):
    """Returns the image for GPUs: the tag of tensorflow/serving with `-gpu`. An image by digest stays."""
    name, colon, tag = image.rpartition(":")
    if "@" in image:
        return image
    if not colon or "/" in tag:  # no tag
        return f"{image}:latest-gpu"
    return image if tag.endswith("-gpu") else f"{name}:{tag}-gpu"


def resource_name(name):
    """Returns a name that Docker Compose and Kubernetes take: at most 58 characters, and the first is a letter.

    Names of small letters, digits and `_` differ in it by themselves. Any other one gets a part of its hash.

    >>> resource_name("en_de"), resource_name("en.de")
    ('en-de', 'en-de-e4d77a0a')
    """
    label = re.sub("[^a-z0-9-]", "-", name.lower()).strip("-")
    if re.fullmatch("[a-z](_?[a-z0-9])*", name) and len(label) <= LONGEST_NAME:
        return label
    label = label if label[:1].isalpha() else f"model-{label}"
    return f"{label[: LONGEST_NAME - 9].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def json_text(content):
    """Returns the text of a file with this content, a str."""
    return json.dumps(content, indent=2) + "\n"
