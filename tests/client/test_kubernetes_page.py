"""The files of docs/kubernetes_https.md: they fit those that `server-files` writes, and nginx takes its part."""

import json
import pathlib
import re

import pytest
import requests

from keras_transformer.serving.server.containers import Server, resource_name
from keras_transformer.serving.server.kubernetes import CLIENT, PROXY, kubernetes
from keras_transformer.serving.server.server_files import IMAGE

pytest.importorskip("tensorflow_serving")
from proxy import ALICE, NGINX, Proxy, ServedExport

yaml = pytest.importorskip("yaml")
PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "kubernetes_https.md").read_text(encoding="utf-8")


def objects():
    """The objects of the page and of `kubernetes.yml`, a dict by kind and name."""
    server = Server("en_de", "/models/en_de", ["en_de"], IMAGE, False, 10**7)
    found = json.loads(kubernetes(server))["items"]
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        found += yaml.safe_load_all(text)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pods(found):
    """The labels and the specification of each kind of pod, a dict by the name of its Deployment."""
    return {
        name: (each["spec"]["template"]["metadata"]["labels"], each["spec"]["template"]["spec"])
        for (kind, name), each in found.items()
        if kind == "Deployment"
    }


def test_the_ingress_leads_to_nginx_and_nginx_to_the_server():
    found = objects()
    templates = pods(found)
    (rule,) = found["Ingress", "en-de-https"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    for name in (backend["name"], "en-de"):
        service = found["Service", name]["spec"]
        labels, pod = templates[name]
        assert service["selector"].items() <= labels.items()
        ports = {port["name"] for port in pod["containers"][0]["ports"]}
        numbers = {port["containerPort"] for port in pod["containers"][0]["ports"]}
        assert all(port.get("targetPort", port["port"]) in ports | numbers for port in service["ports"])
    assert backend["port"]["name"] in {
        port["name"] for port in found["Service", backend["name"]]["spec"]["ports"]
    }
    rest = next(port for port in found["Service", "en-de"]["spec"]["ports"] if port["name"] == "rest")
    upstream = re.search(
        r"server (\S+):(\d+)", found["ConfigMap", "en-de-https"]["data"]["models.conf"]
    ).groups()
    assert upstream == ("en-de", str(rest["port"])) and resource_name("en_de") == "en-de"
    # The NetworkPolicy of the server lets nginx in, and the volume is the one that the server reads.
    assert templates["en-de-https"][0][PROXY] == "en-de" and CLIENT not in templates["en-de-https"][0]
    claim = next(
        volume["persistentVolumeClaim"]["claimName"]
        for volume in templates["en-de"][1]["volumes"]
        if volume["name"] == "model"
    )
    assert ("PersistentVolumeClaim", claim) in found
    for _, pod in templates.values():
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} <= names


def test_a_validator_takes_all_objects():
    validator = pytest.importorskip("kubernetes_validate")
    for each in objects().values():
        validator.validate(each, "1.37", strict=True)


class ConfiguredProxy(Proxy):
    """nginx with the ConfigMap of the page, before one server."""

    def write(self, down=()):
        text = objects()["ConfigMap", "en-de-https"]["data"]["models.conf"]
        (keys,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
        (self.folder / "keys.conf").write_text(keys, encoding="utf-8")
        self.write_configuration(
            text,
            {
                "server en-de:8501": f"server 127.0.0.1:{self.servers[0].rest}",
                "listen 8080": f"listen 127.0.0.1:{self.port}",
                "/etc/nginx/keys": str(self.folder),
                "/dev/stdout": str(self.folder / "requests.log"),
            },
        )


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx")
def test_nginx_asks_for_a_key_and_lets_four_addresses_through(exported, tmp_path):
    server = ServedExport()
    proxy = None
    try:
        server.start("en_de", 1, exported)
        assert server.wait_for("en_de") == 1
        proxy = ConfiguredProxy(tmp_path, [server])
        url = f"http://127.0.0.1:{proxy.port}"
        request = {"json": {"instances": ["a"]}, "timeout": 60}
        models = f"{url}/v1/models/en_de"
        refused = requests.post(f"{models}:predict", **request)
        assert refused.status_code == 401 and refused.json() == {"error": "The key is missing or wrong."}
        wrong = {"authorization": "Bearer key-of-alice"}
        assert requests.post(f"{models}:predict", headers=wrong, **request).status_code == 401
        answer = requests.post(f"{models}:predict", headers=ALICE, **request)
        assert answer.status_code == 200 and len(answer.json()["predictions"]) == 1
        assert requests.get(models, headers=ALICE, timeout=60).status_code == 200
        metrics = requests.get(f"{url}/monitoring/prometheus/metrics", headers=ALICE, timeout=60)
        assert metrics.status_code == 404
        assert [entry["caller"] for entry in proxy.log()] == ["", "", "alice", "alice", "alice"]
        server.kill()
        gone = requests.post(f"{models}:predict", headers=ALICE, **request)
        assert gone.status_code == 502 and gone.json() == {"error": "No server answered."}
    finally:
        server.kill()
        if proxy is not None:
            proxy.close()
