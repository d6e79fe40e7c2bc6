"""The files that run TensorFlow Serving in containers. They are JSON, which is YAML, too, but needs no quoting."""

import json
import re

METRICS = "/monitoring/prometheus/metrics"
# CPUs of a container in Kubernetes. A portable export answers more requests for each CPU with one (docs/serving.md).
CPUS = 1
XLA_CPUS = 4
MEMORY = "4Gi"


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
        "command": _command(name, xla, gpu),
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
    return _text({"services": {_label(name): service}})


def kubernetes(name, image, xla):
    """Returns the text of `kubernetes.yml`: a Deployment, a Service and a HorizontalPodAutoscaler.

    The pods read the model's folder from the PersistentVolumeClaim with the name of the model.

    Args:
        name: Name of the model.
        image: Docker image of the server.
        xla: Whether the export is compiled with XLA.
    """
    label = _label(name)
    probe = {"exec": {"command": ["bash", "-c", health(name)]}, "periodSeconds": 10, "timeoutSeconds": 5}
    cpus = XLA_CPUS if xla else CPUS
    # TensorFlow makes a thread for each core of the node, whatever the limit of the container.
    threads = [f"--tensorflow_{kind}_op_parallelism={cpus}" for kind in ("intra", "inter")]
    container = {
        "name": "server",
        "image": image,
        "args": [*_command(name, xla), *threads],
        "ports": [{"name": "grpc", "containerPort": 8500}, {"name": "rest", "containerPort": 8501}],
        "resources": {
            "requests": {"cpu": str(cpus), "memory": MEMORY},
            "limits": {"cpu": str(cpus), "memory": MEMORY},
        },
        "startupProbe": {**probe, "failureThreshold": 60},  # ten minutes for the warm-up
        "readinessProbe": probe,
        # A busy server is alive, so only the port counts.
        "livenessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 20, "failureThreshold": 3},
        "volumeMounts": [{"name": "model", "mountPath": f"/models/{name}", "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {
        "metadata": {
            "labels": {"app": label},
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "8501",
                "prometheus.io/path": METRICS,
            },
        },
        "spec": {
            "containers": [container],
            "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": label, "readOnly": True}}],
            "terminationGracePeriodSeconds": 60,
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": label},
        "spec": {
            "selector": {"matchLabels": {"app": label}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": pod,
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": label},
        "spec": {
            "selector": {"app": label},
            "ports": [{"name": "grpc", "port": 8500}, {"name": "rest", "port": 8501}],
        },
    }
    cpu = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
    }
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": label},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": label},
            "minReplicas": 2,
            "maxReplicas": 8,
            "metrics": [cpu],
        },
    }
    return _text({"apiVersion": "v1", "kind": "List", "items": [deployment, service, autoscaler]})


def prometheus(name):
    """Returns the text of `prometheus.yml`, which reads the metrics of the server of `docker-compose.yml`."""
    job = {
        "job_name": _label(name),
        "metrics_path": METRICS,
        "scrape_interval": "15s",
        "static_configs": [{"targets": ["localhost:8501"]}],
    }
    return _text({"scrape_configs": [job]})


def health(name):
    """Returns a command of bash that succeeds if a version of the model answers requests."""
    request = f"GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n"
    return f"exec 3<>/dev/tcp/127.0.0.1/8501 && printf '{request}' >&3 && grep -q '\"AVAILABLE\"' <&3"


def _command(name, xla, gpu=False):
    """Returns the options of the server, a list of str."""
    files = f"/models/{name}"
    return [
        f"--model_config_file={files}/models.config",
        "--model_config_file_poll_wait_seconds=30",
        "--allow_version_labels_for_unavailable_models=true",
        "--enable_batching=true",
        f"--batching_parameters_file={files}/batching.config",
        f"--monitoring_config_file={files}/monitoring.config",
        "--rest_api_timeout_in_ms=60000",  # the server's default is half of the client's timeout
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


def _label(name):
    """Returns a name that Docker Compose and Kubernetes take: at most 63 characters, and the first is a letter."""
    label = re.sub("[^a-z0-9-]", "-", name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"model-{label}"
    return label[:63].strip("-")


def _text(content):
    return json.dumps(content, indent=2) + "\n"
