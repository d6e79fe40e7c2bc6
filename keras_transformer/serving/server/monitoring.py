"""The files that watch a server: what Prometheus reads, its alerts, and a dashboard of Grafana. All are JSON."""

from keras_transformer.serving.server.containers import METRICS, json_text, resource_name

# The metrics of TensorFlow Serving. Latencies are histograms, in microseconds.
REQUESTS = ":tensorflow:serving:request_count"
LATENCY = ":tensorflow:serving:request_latency_bucket"
QUEUE = ":tensorflow:serving:batching_session:queuing_latency_bucket"
LOADS = ":tensorflow:cc:saved_model:load_attempt_count"
FAILED_REQUESTS = 'status!="OK"'
FAILED_LOADS = 'status!="success"'
# A rate is the mean of this time.
RATE = "5m"
# At most this share of the requests may fail.
MOST_FAILED = 0.01
# 99 % of the requests may take this many seconds.
SLOWEST = 5
# 90 % of the requests may wait this many seconds. The histogram ends at one second.
LONGEST_QUEUE = 0.5
ALERTS = "alerts.yml"


def prometheus(name):
    """Returns the text of `prometheus.yml`, which reads the metrics of the server of `docker-compose.yml`."""
    job = {
        "job_name": resource_name(name),
        "metrics_path": METRICS,
        "scrape_interval": "15s",
        "static_configs": [{"targets": ["localhost:8501"]}],
    }
    return json_text({"rule_files": [ALERTS], "scrape_configs": [job]})


def alerts(name):
    """Returns the text of `alerts.yml`, the rules of Prometheus that say when somebody must look at the server."""
    job, failed_loads = _selector(name), f"{LOADS}{_selector(name, FAILED_LOADS)}"
    rules = [
        ("ServerDown", f"up{job} == 0 or absent(up{job})", "1m", "Prometheus does not reach the server."),
        (
            "RequestsFail",
            f"{_failed(name)} / {_rate(REQUESTS, job)} > {MOST_FAILED}",
            RATE,
            f"More than {MOST_FAILED:.0%} of the requests got an error.",
        ),
        (
            "AnswersAreSlow",
            f"{_quantile(0.99, LATENCY, job)} > {SLOWEST * 10**6}",
            "10m",
            f"1 % of the requests take more than {SLOWEST} seconds.",
        ),
        (
            "RequestsWait",
            f"{_quantile(0.9, QUEUE, job)} > {int(LONGEST_QUEUE * 10**6)}",
            "10m",
            f"10 % of the requests wait more than {LONGEST_QUEUE} seconds for their batch.",
        ),
        (
            "VersionNotLoaded",
            # The series begins with the first failure, so that one does not count as an increase.
            f"increase({failed_loads}[15m]) > 0 or ({failed_loads} unless {failed_loads} offset 15m) > 0",
            "0m",
            "The server could not load a version.",
        ),
    ]
    rules = [
        {
            "alert": alert,
            "expr": expression,
            "for": time,
            "labels": {"severity": "page" if alert == "ServerDown" else "warning"},
            "annotations": {"summary": summary},
        }
        for alert, expression, time, summary in rules
    ]
    return json_text({"groups": [{"name": resource_name(name), "rules": rules}]})


def dashboard(name):
    """Returns the text of `dashboard.json`, which Grafana imports. It asks for the source of the data."""
    job = _selector(name)
    latencies = [(f"p{percent}", _quantile(percent / 100, LATENCY, job)) for percent in (50, 90, 99)]
    queues = [(f"p{percent}", _quantile(percent / 100, QUEUE, job)) for percent in (50, 90)]
    per_version = f"sum by (model_name, status) (rate({REQUESTS}{job}[{RATE}]))"
    panels = [
        ("Requests a second", "reqps", [("{{model_name}} {{status}}", per_version)]),
        (
            "Share of failed requests",
            "percentunit",
            [("failed", f"{_failed(name)} / {_rate(REQUESTS, job)}")],
        ),
        ("Latency of requests", "µs", latencies),
        ("Time in the queue of a batch", "µs", queues),
        ("Servers that answer", "none", [("{{instance}}", f"up{job}")]),
        ("Attempts to load a version", "none", [("{{model_path}} {{status}}", f"{LOADS}{job}")]),
    ]
    source = {"type": "prometheus", "uid": "${source}"}
    return json_text(
        {
            "title": name,
            "uid": resource_name(name)[-40:],
            "schemaVersion": 39,
            "time": {"from": "now-6h", "to": "now"},
            "refresh": "30s",
            "templating": {
                "list": [{"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}]
            },
            "panels": [
                {
                    "id": i + 1,
                    "type": "timeseries",
                    "title": title,
                    "datasource": source,
                    "gridPos": {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {
                            "refId": chr(65 + j),
                            "datasource": source,
                            "expr": expression,
                            "legendFormat": legend,
                        }
                        for j, (legend, expression) in enumerate(targets)
                    ],
                }
                for i, (title, unit, targets) in enumerate(panels)
            ],
        }
    )


def _selector(name, *others):
    """Returns the selector of the metrics of a job."""
    return "{" + ", ".join([f'job="{resource_name(name)}"', *others]) + "}"


def _rate(metric, selector):
    return f"sum(rate({metric}{selector}[{RATE}]))"


def _failed(name):
    return _rate(REQUESTS, _selector(name, FAILED_REQUESTS))


def _quantile(share, metric, selector):
    return f"histogram_quantile({share}, sum by (le) (rate({metric}{selector}[{RATE}])))"
