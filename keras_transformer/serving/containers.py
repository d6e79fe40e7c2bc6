"""The files that run TensorFlow Serving with Docker. They are JSON, which is YAML, too, but needs no quoting."""

import json
import re

METRICS = "/monitoring/prometheus/metrics"
LONGEST_REQUEST = 60  # seconds after which the server ends a request over REST


def compose(name, image, xla, gpu=False):
    """Returns the text of `docker-compose.yml`, or of `docker-compose.gpu.yml`.

    Args:
        name: Name of the model.
        image: Docker image of the server for CPUs.
        xla: Whether the export is compiled with XLA.
        gpu: Whether the server uses a GPU.
    """
    service = {
        "image": _gpu_image(image) if gpu else image,
        "restart": "unless-stopped",
        # gRPC; then REST, with metrics. Both have no password, and the port of gRPC also takes new configurations, so
        # they are open to this machine only.
        "ports": [f"127.0.0.1:{port}:{port}" for port in (8500, 8501)],
        "volumes": [f".:/models/{name}:ro"],
        "command": command(name, xla, gpu),
        "healthcheck": {
            # The image has bash and grep, but no client of HTTP.
            "test": ["CMD", "bash", "-c", health(name)],
            "interval": "10s",
            "timeout": "5s",
            "start_period": "5m",
        },
    }
    if gpu:
        device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return text({"services": {label(name): service}})


def prometheus(name):
    """Returns the text of `prometheus.yml`, which reads the metrics of the server of `docker-compose.yml`."""
    job = {
        "job_name": label(name),
        "metrics_path": METRICS,
        "scrape_interval": "15s",
        "static_configs": [{"targets": ["localhost:8501"]}],
    }
    return text({"scrape_configs": [job]})


def health(name):
    """Returns a command of bash that succeeds if a version of the model answers requests."""
    request = f"GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n"
    return f"exec 3<>/dev/tcp/127.0.0.1/8501 && printf '{request}' >&3 && grep -q '\"AVAILABLE\"' <&3"


def command(name, xla, gpu=False):
    """Returns the options of the server, a list of str.

    Args:
        name: Name of the model.
        xla: Whether the export is compiled with XLA.
        gpu: Whether the server uses a GPU.
    """
    files = f"/models/{name}"
    return [
        f"--model_config_file={files}/models.config",
        "--model_config_file_poll_wait_seconds=30",
        "--allow_version_labels_for_unavailable_models=true",
        "--enable_batching=true",
        f"--batching_parameters_file={files}/batching.config",
        f"--monitoring_config_file={files}/monitoring.config",
        f"--rest_api_timeout_in_ms={1000 * LONGEST_REQUEST}",  # the server's default is half of the client's timeout
        *([f"--xla_{'gpu' if gpu else 'cpu'}_compilation_enabled=true"] if xla else []),
    ]


def _gpu_image(image):
    """Returns the image for GPUs: the tag of tensorflow/serving with `-gpu`. An image by digest stays."""
    name, colon, tag = image.rpartition(":")
    if "@" in image:
        return image
    if not colon or "/" in tag:  # no tag
        return f"{image}:latest-gpu"
    return image if tag.endswith("-gpu") else f"{name}:{tag}-gpu"


def label(name):
    """Returns a name that Docker Compose and Kubernetes take: at most 63 characters, and the first is a letter."""
    label = re.sub("[^a-z0-9-]", "-", name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"model-{label}"
    return label[:63].strip("-")


def text(content):
    """Returns the text of a file with this content, a str."""
    return json.dumps(content, indent=2) + "\n"
