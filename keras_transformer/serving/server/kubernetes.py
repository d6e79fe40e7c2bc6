"""The file that runs TensorFlow Serving in Kubernetes. It is JSON, which is valid YAML and needs no quotes by hand."""

import math

from keras_transformer.serving.server.containers import (
    GIB,
    LONGEST_REQUEST,
    METRICS,
    POD_BATCHING,
    USER,
    command,
    health,
    json_text,
    resource_name,
)

# CPUs of a container. A portable export answers more requests for each CPU with one (benchmarks/serving.md).
CPUS = 1
XLA_CPUS = 4
# Batches that a pod computes at the same time for each CPU: a short request does not wait for a long one.
BATCHES_PER_CPU = 2
# Memory of the server itself, of its graphs and of the batches that it computes, in GiB.
SERVER_GIB = 2
# Seconds after which the server closes a connection of gRPC, give or take a tenth. Its client connects again, and so
# finds new pods and leaves those that end.
CONNECTION_AGE = 30
# Seconds in which a pod that ends still answers: its last connection becomes that old, and its last request that long.
DRAIN = math.ceil(1.1 * CONNECTION_AGE) + LONGEST_REQUEST
# The name of the Service without an address of its own ends so.
HEADLESS = "-grpc"
# The label of the pods that may use REST. Its value is the label of the model.
CLIENT = "client-of"
# The label of the pods that may use gRPC too, by which a client can change the server's configuration.
PROXY = "proxy-of"
# The pods of this namespace may read the metrics.
MONITORING = "monitoring"


def cpus_of(server):
    """Returns the number of CPUs of a pod of a `Server`."""
    return XLA_CPUS if server.xla else CPUS


def kubernetes(server):
    """Returns the text of `kubernetes.yml` for a `Server`.

    It holds a Deployment, two Services, a HorizontalPodAutoscaler, a PodDisruptionBudget and a NetworkPolicy. The pods
    read the server's folder from the PersistentVolumeClaim with the name of the server.
    """
    app = resource_name(server.name)
    selector, address = {"matchLabels": {"app": app}}, app + HEADLESS
    ports = {"grpc": 8500, "rest": 8501}
    service = {
        "selector": {"app": app},
        "ports": [{"name": port, "port": number} for port, number in ports.items()],
    }
    headless = {
        "selector": {"app": app},
        "clusterIP": "None",
        "ports": [{"name": "grpc", "port": ports["grpc"]}],
    }
    cpu = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
    }
    autoscaler = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": app},
        "minReplicas": 2,
        "maxReplicas": 8,
        "metrics": [cpu],
    }
    deployment = {
        "selector": selector,
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": _pod(server),
    }
    clients, proxies = ({"podSelector": {"matchLabels": {label: app}}} for label in (CLIENT, PROXY))
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": MONITORING}}}
    policy = {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "egress": [],  # the server calls nobody
        "ingress": [
            {"from": [clients], "ports": [{"port": ports["rest"]}]},
            {"from": [proxies], "ports": [{"port": number} for number in ports.values()]},
            {"from": [monitoring], "ports": [{"port": ports["rest"]}]},
        ],
    }
    items = [
        ("apps/v1", "Deployment", app, deployment),
        ("v1", "Service", app, service),
        ("v1", "Service", address, headless),
        ("autoscaling/v2", "HorizontalPodAutoscaler", app, autoscaler),
        ("policy/v1", "PodDisruptionBudget", app, {"minAvailable": 1, "selector": selector}),
        ("networking.k8s.io/v1", "NetworkPolicy", app, policy),
    ]
    items = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": each}, "spec": spec}
        for version, kind, each, spec in items
    ]
    return json_text({"apiVersion": "v1", "kind": "List", "items": items})


def _pod(server):
    """Returns the pods of the Deployment of a `Server`, a dict."""
    app = resource_name(server.name)
    probe = {"exec": {"command": ["bash", "-c", health(server)]}, "periodSeconds": 10, "timeoutSeconds": 5}
    cpus = cpus_of(server)
    resources = {"cpu": str(cpus), "memory": f"{SERVER_GIB + math.ceil(server.weights_bytes / GIB)}Gi"}
    options = [
        # TensorFlow makes a thread for each core of the node, whatever the limit of the container.
        *(f"--tensorflow_{kind}_op_parallelism={cpus}" for kind in ("intra", "inter")),
        f"--grpc_channel_arguments=grpc.max_connection_age_ms={1000 * CONNECTION_AGE}",
    ]
    container = {
        "name": "server",
        "image": server.image,
        "args": [*command(server, batching=POD_BATCHING), *options],
        # glibc keeps freed memory in up to eight arenas for each core of the node (benchmarks/serving.md).
        "env": [{"name": "MALLOC_ARENA_MAX", "value": str(cpus)}],
        "ports": [{"name": "grpc", "containerPort": 8500}, {"name": "rest", "containerPort": 8501}],
        "resources": {"requests": resources, "limits": resources},
        # The warm-up may take ten minutes.
        "startupProbe": {**probe, "failureThreshold": 60},
        "readinessProbe": probe,
        # A busy server is alive, so only the port counts.
        "livenessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 20, "failureThreshold": 3},
        # TensorFlow Serving does not finish its requests when it is told to stop.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN)]}}},
        "volumeMounts": [
            {"name": "model", "mountPath": server.folder, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": app}},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    annotations = {"scrape": "true", "port": "8501", "path": METRICS}
    return {
        "metadata": {
            "labels": {"app": app},
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": "model", "persistentVolumeClaim": {"claimName": app, "readOnly": True}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
            "terminationGracePeriodSeconds": DRAIN + 5,
            "topologySpreadConstraints": spread,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }
