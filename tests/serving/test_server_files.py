"""The configuration of a server: versions, labels, batching, containers, and names that are refused."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from contracts import refuses
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "client"))
from commands import assert_refused, run
from servers import Backend, rest_server

from keras_transformer.cli.main import main
from keras_transformer.files import LOCK, locked
from keras_transformer.serving.server.containers import resource_name
from keras_transformer.serving.server.server_files import write_server_files


@pytest.fixture
def base(tmp_path):
    """A model's base path with three versions, the last compiled."""
    folder = tmp_path / "en_de"
    for version, described in {
        1: {"batch_sizes": [1, 8, 32], "xla": False},
        2: {"batch_sizes": [1, 8, 32], "xla": False},
        11: {"batch_sizes": [1, 4], "xla": True},
    }.items():
        extra = folder / str(version) / "assets.extra"
        extra.mkdir(parents=True)
        (folder / str(version) / "saved_model.pb").touch()
        (extra / "export.json").write_text(json.dumps(described))
    return folder


def model_of(folder):
    """The only model of a `models.config`."""
    text = (folder / "models.config").read_text()
    (model,) = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    return model


FILES = [
    *("models.config", "batching.config", "batching.pod.config", "monitoring.config", "docker-compose.yml"),
    *("docker-compose.gpu.yml", "kubernetes.yml", "prometheus.yml", "alerts.yml", "dashboard.json"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fixture", "name", "labels"),
    [("base", "my.model", {}), ("several", "pair", {"stable": {"en_de": 1}, "canary": {"en_de": 2}})],
    ids=["one", "several"],
)
def test_files_are_the_golden_ones(fixture, name, labels, request):
    """Of a compiled model, and of two models. REWRITE_GOLDEN=1 writes the golden files; review their `git diff`."""
    files = write_server_files(request.getfixturevalue(fixture), name, **labels)
    assert [file.name for file in files] == FILES
    golden = pathlib.Path(__file__).with_name("golden") / request.node.callspec.id
    for file in files:
        if os.environ.get("REWRITE_GOLDEN"):
            golden.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, golden / file.name)
        assert file.read_text(encoding="utf-8") == (golden / file.name).read_text(encoding="utf-8"), file.name


def test_other_folders_are_not_versions(base):
    (base / "1²").mkdir()
    (base / "1²" / "saved_model.pb").touch()
    write_server_files(base, stable=2)
    assert list(model_of(base).model_version_policy.specific.versions) == [2]


def test_stable_moves_only_to_a_version_that_runs(base):
    """TensorFlow Serving moves a label that is in use only to a version that is loaded."""

    def served(**labels):
        write_server_files(base, **labels)
        model = model_of(base)
        assert dict(model.version_labels) == {k: v for k, v in labels.items() if v}
        return list(model.model_version_policy.specific.versions)

    assert served(stable=1) == [1]
    with pytest.raises(
        ValueError, match=r"`stable` must move to .* runs, \[1\]: make it the canary first.*stable=2"
    ):
        write_server_files(base, stable=2)
    assert dict(model_of(base).version_labels) == {"stable": 1}
    assert served(stable=1, canary=2) == [1, 2]
    assert served(stable=2) == [1, 2]  # the way back is open ...
    assert served(stable=1) == [1, 2]
    assert served(stable=2) == [1, 2]
    assert served(stable=2) == [2]  # ... until the same is said once more
    refuses(r"`stable` must move to .* runs, \[2\]", write_server_files, base, stable=1)
    (base / "models.config").unlink()
    assert served(stable=1) == [1]


def service_of(folder):
    """The settings of the only service in a `docker-compose.yml`."""
    (service,) = json.loads((folder / "docker-compose.yml").read_text())["services"].values()
    return service


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"stable": 3}, r"`stable` must be one of the versions \[1, 2, 11\]\. Received: stable=3"),
        ({"canary": 0}, r"`canary` must be one .* Received: canary=0"),
        ({"stable": 2, "canary": 11}, r"same batch_sizes\. .* version 2: \[1, 8, 32\], version 11: \[1, 4\]"),
        ({"name": "a b"}, r"`name` must hold .* Received: name='a b'"),
        ({"image": "a\n    privileged: true"}, r"the name of a Docker image\. Received: image='a\\n    priv"),
        ({"image": "${SECRET}"}, "`image` must be the name of a Docker image"),
        *(({"name": name}, "`name` must hold only") for name in (".", "..", "a/b", "a\nb", "a: b", "", "é")),
    ],
)
def test_refused_arguments_write_nothing(base, arguments, message):
    refuses(message, write_server_files, base, **arguments)
    assert sorted(path.name for path in base.iterdir() if path.name != LOCK) == ["1", "11", "2"]


def kubernetes_of(folder):
    """The specs of `kubernetes.yml`, a dict from a pair of kind and name."""
    items = json.loads((folder / "kubernetes.yml").read_text())["items"]
    return {(item["kind"], item["metadata"]["name"]): item["spec"] for item in items}


def test_a_pod_that_ends_first_answers_what_it_has(base):
    """TensorFlow Serving ignores the signal, so the pod waits before it."""
    write_server_files(base, stable=1)
    pod = kubernetes_of(base)["Deployment", "en-de"]["template"]["spec"]
    (container,) = pod["containers"]
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    (age,) = re.findall("max_connection_age_ms=([0-9]+)", " ".join(container["args"]))
    (request,) = re.findall("rest_api_timeout_in_ms=([0-9]+)", " ".join(container["args"]))
    assert command == "sleep" and int(seconds) * 1000 >= 1.1 * int(age) + int(request)
    assert pod["terminationGracePeriodSeconds"] > int(seconds)


def test_different_names_are_different_resources():
    names = ["a.b", "a_b", "a-b", "A_b", "a__b", "a_b_", "_a_b", *(f"{'a' * 70}{i}" for i in range(3))]
    names += ["2024_en_de", "-", "EN-" + "d" * 80, "_" * 70 + "x"]
    assert len({*map(resource_name, names)}) == len(names) and resource_name("a_b") == "a-b"
    assert all(re.fullmatch("[a-z][a-z0-9-]{0,56}[a-z0-9]", resource_name(name)) for name in names)


def resources_of(folder, name="en-de"):
    """The resources of the only container in a `kubernetes.yml`."""
    (container,) = kubernetes_of(folder)["Deployment", name]["template"]["spec"]["containers"]
    return container["resources"]


@pytest.mark.parametrize(("precision", "memory"), [("float32", "8Gi"), ("int8", "8Gi"), ("bfloat16", "20Gi")])
def test_memory_follows_from_the_size_of_the_model(base, precision, memory):
    """Two versions, while a label moves, and the server itself."""
    extra, variables = base / "1" / "assets.extra", base / "1" / "variables"
    described = json.loads((extra / "export.json").read_text())
    write_server_files(base, stable=1)
    small = resources_of(base)
    assert small["limits"] == small["requests"] and small["limits"]["memory"] == "3Gi"
    (extra / "export.json").write_text(json.dumps({**described, "precision": precision}))
    variables.mkdir()
    with open(variables / "variables.data", "wb") as file:
        file.truncate(3 * 2**30 - 2**20)  # without a byte on the disk
    write_server_files(base, stable=1)
    assert resources_of(base)["limits"]["memory"] == memory


def test_a_pod_computes_few_batches_at_once(base):
    """By default as many as the node has cores, and each takes memory."""
    write_server_files(base, stable=1)
    (container,) = kubernetes_of(base)["Deployment", "en-de"]["template"]["spec"]["containers"]
    (name,) = re.findall("batching_parameters_file=/models/.*/(.*)", "\n".join(container["args"]))
    docker, pod = ((base / each).read_text() for each in ("batching.config", name))
    assert pod == docker + "num_batch_threads { value: 2 }\n"


def test_folder_is_locked_and_temporary_files_go(base):
    left = base / ".tmp-0123abcd-models.config"
    left.write_text("half")
    with locked(base), pytest.raises(ValueError, match="in use by another process"):
        write_server_files(base, stable=1)
    assert left.exists() and not (base / "models.config").exists()
    write_server_files(base, stable=1)
    assert not left.exists() and (base / "models.config").exists()


def test_page_explains_alerts_and_their_metrics(base):
    write_server_files(base)
    prometheus = json.loads((base / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    (alerts,) = prometheus["rule_files"]
    (group,) = json.loads((base / alerts).read_text())["groups"]
    panels = json.loads((base / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    page = (pathlib.Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    for expression in expressions:
        for metric, selector in re.findall(r"([\w:]+)\{(.*?)\}", expression):
            assert f'job="{job["job_name"]}"' in selector
            assert metric == "up" or f"`{metric.removesuffix('_bucket')}`" in page
    for rule in group["rules"]:
        assert f"| `{rule['alert']}` |" in page
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
def test_prometheus_takes_its_files_and_alerts_fire(base):
    write_server_files(base)
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"]):
        subprocess.run(["promtool", *command], cwd=base, check=True, timeout=60)
    requests = ':tensorflow:serving:request_count{job="en-de", model_name="en_de", status='
    latency = ':tensorflow:serving:request_latency_bucket{job="en-de", le='
    queue = ':tensorflow:serving:batching_session:queuing_latency_bucket{job="en-de", le='
    series = {
        'up{job="en-de"}': "1x20 0x20", f'{requests}"OK"}}': "0+60x40", f'{requests}"INTERNAL"}}': "0+2x40",
        f'{latency}"1000000"}}': "0+10x40", f'{latency}"9000000"}}': "0+60x40",
        f'{latency}"+Inf"}}': "0+60x40", f'{queue}"1000"}}': "0+10x40", f'{queue}"900000"}}': "0+60x40",
        f'{queue}"+Inf"}}': "0+60x40",
        ':tensorflow:cc:saved_model:load_attempt_count{job="en-de", status="fail"}': "_x30 1x10",
    }  # fmt: skip
    (group,) = json.loads((base / "alerts.yml").read_text())["groups"]
    fired = [
        {
            "eval_time": "35m",
            "alertname": rule["alert"],
            "exp_alerts": [{"exp_labels": labels_of(rule), "exp_annotations": rule["annotations"]}],
        }
        for rule in group["rules"]
    ]
    quiet = [{"eval_time": "15m", "alertname": "ServerDown", "exp_alerts": []}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [*fired, *quiet],
    }
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (base / "test.yml").write_text(json.dumps(content))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=base, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def labels_of(rule):
    """The labels of an alert of these series. A sum has none but those of the rule."""
    labels = rule["labels"]
    if rule["alert"] == "ServerDown":
        return {**labels, "job": "en-de"}
    return {**labels, "job": "en-de", "status": "fail"} if rule["alert"] == "VersionNotLoaded" else labels


@pytest.mark.slow
def test_kubernetes_takes_its_file(base):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    write_server_files(base, stable=1)
    for item in json.loads((base / "kubernetes.yml").read_text())["items"]:
        assert validate.validate(item, "1.32", strict=True)


@pytest.fixture
def several(base, tmp_path):
    """A folder with the base paths of two models."""
    shutil.rmtree(base / "11")
    shutil.copytree(base, tmp_path / "de_en")
    (tmp_path / "notes").mkdir()
    return tmp_path


def models_of(folder):
    """A dict from the name of each model to its base path, the versions that run, and the labels."""
    text = (folder / "models.config").read_text()
    models = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    return {
        model.name: (
            model.base_path,
            list(model.model_version_policy.specific.versions),
            dict(model.version_labels),
        )
        for model in models
    }


def test_labels_of_several_models_move_alone(several):
    write_server_files(several, "pair", stable={"en_de": 1})
    assert models_of(several) == {
        "de_en": ("/models/de_en", [2], {"stable": 2}),
        "en_de": ("/models/en_de", [1], {"stable": 1}),
    }
    write_server_files(several, "pair", stable={"en_de": 1}, canary={"en_de": 2})
    assert models_of(several)["en_de"][1:] == ([1, 2], {"stable": 1, "canary": 2})
    write_server_files(several, "pair", stable={"en_de": 2})
    with pytest.raises(ValueError, match=r"runs, \[2\]: make it the canary first.*stable=1, in .*de_en"):
        write_server_files(several, "pair", stable={"de_en": 1})
    before = models_of(several)
    assert before["en_de"][1:] == ([1, 2], {"stable": 2})
    shutil.copytree(several / "en_de", several / "ko_en")
    write_server_files(several, "pair")  # a new model; the others stay, and the way back is open
    assert models_of(several) == {**before, "ko_en": ("/models/ko_en", [2], {"stable": 2})}


def test_server_is_healthy_if_each_of_its_models_answers(several):
    write_server_files(several, image="registry.local:5000/serving@sha256:0a1b")
    assert service_of(several)["image"] == "registry.local:5000/serving@sha256:0a1b"
    *shell, command = service_of(several)["healthcheck"]["test"][1:]
    backend = Backend({"en_de": {1: None}, "de_en": {1: None}})
    with rest_server(backend) as url:
        command = command.replace("127.0.0.1/8501", url.removeprefix("http://").replace(":", "/"))
        assert subprocess.run([*shell, command], timeout=60).returncode == 0
        for name in backend.states:
            backend.states[name][1] = "LOADING"
            assert subprocess.run([*shell, command], timeout=60).returncode != 0
            backend.states[name][1] = "AVAILABLE"


@pytest.mark.slow
def test_memory_of_several_models_has_room_for_one_that_moves(several):
    for name, gigabytes in (("en_de", 3), ("de_en", 1)):
        (several / name / "2" / "variables").mkdir()
        with open(several / name / "2" / "variables" / "variables.data", "wb") as file:
            file.truncate(gigabytes * 2**30 - 2**20)  # without a byte on the disk
    write_server_files(several, "pair")
    assert resources_of(several, "pair")["limits"]["memory"] == f"{2 + 3 + 1 + 3}Gi"
    for name in ("en_de", "de_en"):
        shutil.copytree(several / name / "2", several / name / "3")
    write_server_files(several, "pair", canary={"en_de": 3, "de_en": 3}, stable={"en_de": 2, "de_en": 2})
    assert resources_of(several, "pair")["limits"]["memory"] == f"{2 + 3 + 1 + 3 + 1}Gi"


def test_labels_names_and_settings_of_several_models_that_do_not_fit_are_refused(several):
    for arguments, message in (
        (
            {"stable": 1},
            r"`stable` must be a dict from .*; the models are de_en, en_de\. Received: stable=1\.",
        ),
        ({"canary": {"other": 1}}, r"`canary` must be a dict .* Received: canary={'other': 1}"),
        ({"stable": {"de_en": 3}}, r"one of the versions \[1, 2\]\. Received: stable=3, in .*de_en"),
    ):
        refuses(message, write_server_files, several, **arguments)
    assert not (several / "models.config").exists()
    shutil.copytree(several / "de_en", several / "de en")
    refuses(r"`folder` must hold models whose names hold .*name='de en'", write_server_files, several, "pair")
    shutil.rmtree(several / "de en")
    described = several / "de_en" / "2" / "assets.extra" / "export.json"
    described.write_text(json.dumps({"batch_sizes": [1, 4], "xla": False}))
    refuses(r"same batch_sizes\. .* de_en version 2: \[1, 4\], en_de version 2", write_server_files, several)


def test_changed_files_stay(base):
    """A file of the user's, one of the command's for another version, and the image."""
    write_server_files(base, stable=1, image="registry/serving:2.19")
    compose = base / "docker-compose.yml"
    own = compose.read_text().replace("--enable_batching=true", "--enable_batching=false")
    compose.write_text(own)
    models = base / "models.config"
    models.write_text("# mine\n" + models.read_text())
    with (
        pytest.warns(UserWarning, match="docker-compose.yml was changed by hand"),
        pytest.warns(UserWarning, match="models.config.old holds the changed one"),
    ):
        files = write_server_files(base, stable=1, canary=2)
    assert compose.read_text() == own
    new = base / "docker-compose.yml.new"
    assert new in files
    assert "registry/serving:2.19" in new.read_text()
    assert dict(model_of(base).version_labels) == {"stable": 1, "canary": 2}
    assert (base / "models.config.old").read_text().startswith("# mine")
    assert not (base / "kubernetes.yml.new").exists()
    # Merged: the file holds what the command writes.
    compose.write_text(new.read_text())
    write_server_files(base, stable=1, canary=2)
    assert not new.exists()


def test_command_moves_labels(base, several):
    assert run("server-files", base, "--stable", "1", "--canary", "2")[0] == 0
    assert dict(model_of(base).version_labels) == {"stable": 1, "canary": 2}
    assert run("server-files", several, "--stable", "en_de=1", "--stable", "de_en=2")[0] == 0
    assert {name: labels for name, (_, _, labels) in models_of(several).items()} == {
        "en_de": {"stable": 1},
        "de_en": {"stable": 2},
    }
    for options in (["1", "2"], ["en_de=1", "en_de=2"], ["1", "en_de=2"]):
        options = [part for each in options for part in ("--stable", each)]
        assert_refused(
            "server-files", several, *options, named="--stable must be given once, or once for each"
        )


@pytest.mark.parametrize("wrong", ["abc", "en_de=", "=1", "en_de=-1"])
def test_command_refuses_a_version_that_is_not_a_number(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["server-files", "models", f"--stable={wrong}"])
    assert "argument --stable: must be N, or NAME=N for one of several models" in capsys.readouterr().err


NO_DESCRIPTIONS = ["{", "{}", "[]", '{"batch_sizes": [8], "xla": "no"}']
NO_DESCRIPTIONS += [
    json.dumps({"batch_sizes": sizes, "xla": False})
    for sizes in (["1 }\nallowed_batch_sizes { value: 1"], "8", 8, [], [-1], [True], [10**30])
]


@pytest.mark.parametrize("described", NO_DESCRIPTIONS)
def test_hostile_description_reaches_no_file(base, described):
    """The newest version is the stable one: by number, not by name."""
    (base / "11" / "assets.extra" / "export.json").write_text(described)
    refuses("11 is not an export of this library", write_server_files, base)
    assert not list(base.glob("*.config"))


def test_folders_that_cannot_be_served_are_refused(base, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="`folder` must hold an exported version, or folders of models"):
        write_server_files(tmp_path / "empty")
    write_server_files(base)
    assert dict(model_of(base).version_labels) == {"stable": 11}
    (base / "models.config").write_text("no config")
    refuses(r"models\.config cannot be read", write_server_files, base)
