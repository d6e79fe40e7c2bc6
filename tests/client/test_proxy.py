"""The configuration of docs/proxy.md in a real nginx: TLS, keys, a log of requests, and an update under load."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
import types

import pytest
import requests
from commands import run

pytest.importorskip("tensorflow_serving")
from proxy import ALICE, NGINX, Proxy, ServedExport
from servers import Backend, grpc_server, refuse, rest_server

from keras_transformer.client import AsyncClient, Client, load_test

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx"),
]
SECONDS = float(os.environ.get("ROLLING_SECONDS", "30"))  # ROLLING_SECONDS=300 for a thorough look


@pytest.fixture(scope="module")
def servers(exported):
    """Two servers, which serve version 1."""
    started = [ServedExport(), ServedExport()]
    try:
        for server in started:
            server.start("en_de", 1, exported)
        for server in started:
            assert server.wait_for("en_de") == 1
        yield started
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def start(servers, tmp_path):
    """Starts nginx before the servers, and stops it."""
    started = []

    def start(**options):
        started.append(Proxy(tmp_path, servers, **options))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


def hang_up():
    """A fault: the server closes the connection without an answer."""
    raise BrokenPipeError


def urls(proxy):
    return [f"https://127.0.0.1:{proxy.port}", f"grpcs://127.0.0.1:{proxy.port}"]


def test_all_clients_work_with_a_key_and_a_wrong_key_is_one_sentence(
    start, translator, pairs, tmp_path, monkeypatch
):
    proxy = start()
    lines = [source for source, _ in pairs[:3]]
    expected = translator.translate(lines)
    text = "\n".join(lines).encode()
    monkeypatch.setenv("KEY", ALICE["authorization"])
    monkeypatch.setenv("WRONG", "Bearer key-of-alice")
    common = ["--model", "en_de", "--certificates", proxy.certificate]
    for url in urls(proxy):
        arguments = {"certificates": proxy.certificate, "headers": ALICE}
        with Client(url, "en_de", **arguments) as client:
            assert client.translate(lines) == expected
            assert client.status() == {1: "AVAILABLE"} and client.ready()

        async def translated(url=url, arguments=arguments):
            async with AsyncClient(url, "en_de", **arguments) as client:
                return await client.translate(lines)

        assert asyncio.run(translated()) == expected
        code, out, err = run("ask", url, *common, "--header-variable", "Authorization:KEY", stdin=text)
        assert (code, out.decode().splitlines(), err) == (0, expected, "")
        options = [*common, "--header-variable", "Authorization:KEY", "--requests", "5", "--retries", "3"]
        code, out, _ = run("load-test", url, *options, stdin=text)
        assert code == 0 and "answered      5 requests" in out.decode()
        for command in (["ask"], ["load-test"]):
            code, out, err = run(
                *command, url, *common, "--header-variable", "Authorization:WRONG", stdin=text
            )
            assert (code, out) == (2, b"") and err.count("\n") == 1 and "UNAUTHENTICATED" in err
            assert "key-of-alice" not in err
    with (
        Client(urls(proxy)[0], "en_de", certificates=proxy.certificate) as client,
        pytest.raises(PermissionError, match=r"The key is missing or wrong\. \(UNAUTHENTICATED\)$"),
    ):
        client.status()
    assert {entry["caller"] for entry in proxy.log()} == {"alice", ""}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_works_with_a_key_and_reaches_nothing_else(start, translator, pairs):
    proxy = start()

    def curl(path, *options):
        command = ["curl", "-s", "-w", "\n%{http_code}", "--cacert", proxy.certificate, *options]
        command.append(f"{urls(proxy)[0]}{path}")
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body

    key = ["-H", f"Authorization: {ALICE['authorization']}"]
    body = ["-d", json.dumps({"instances": [pairs[0][0]]})]
    status, answer = curl("/v1/models/en_de:predict", *key, *body)
    assert status == 200
    assert json.loads(answer)["predictions"][0]["translation"] == translator.translate([pairs[0][0]])[0]
    assert curl("/v1/models/en_de:predict", *body) == (401, '{"error": "The key is missing or wrong."}')
    for path in (
        "/monitoring/prometheus/metrics",
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    ):
        assert curl(path, *key)[0] == 404


def test_ids_of_requests_reach_the_log(start, pairs):
    proxy = start()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for number, url in enumerate(urls(proxy)):
        with Client(url, "en_de", certificates=proxy.certificate, headers=ALICE) as client:
            client.with_headers({"x-request-id": f"order-{number}", "traceparent": trace}).translate(["a"])
            client.translate(["a"])
        code, _, _ = run(
            *("ask", url, "--model", "en_de", "--certificates", proxy.certificate),
            *("--header", f"x-request-id:line-{number}", "--header", f"Authorization:{ALICE['authorization']}"),
            stdin=b"a",
        )  # fmt: skip
        assert code == 0
    found = [entry for entry in proxy.log() if entry["status"] == 200]
    ids = [entry["request_id"] for entry in found]
    assert {"order-0", "order-1", "line-0", "line-1"} < set(ids) and all(ids)
    traced = [entry for entry in found if entry["traceparent"]]
    assert {entry["request_id"] for entry in traced} == {"order-0", "order-1"}
    assert {entry["traceparent"] for entry in traced} == {trace}
    addresses = {f"127.0.0.1:{port}" for server in proxy.servers for port in (server.rest, server.rpc)}
    assert {entry["servers"] for entry in found} <= addresses


@contextlib.contextmanager
def before(backend, folder):
    """An nginx before two servers of a backend in this process."""
    with rest_server(backend) as rest, grpc_server(backend) as rpc, contextlib.ExitStack() as closing:
        ports = {"rest": rest, "rpc": rpc}
        server = types.SimpleNamespace(**{name: int(url.rsplit(":")[-1]) for name, url in ports.items()})
        proxy = Proxy(folder, [server, server])
        closing.callback(proxy.close)
        yield proxy


def test_a_key_does_not_reach_the_servers(tmp_path):
    backend = Backend({"en_de": {1: None}})
    with before(backend, tmp_path) as proxy:
        for url in urls(proxy):
            with Client(url, "en_de", certificates=proxy.certificate, headers=ALICE) as client:
                assert client.status() == {1: "AVAILABLE"}
    names = [{name.lower() for name in headers} for headers in backend.headers]
    assert len(names) == 2 and all("x-request-id" in each for each in names)
    assert not any("authorization" in each for each in names)


def test_caller_above_its_rate_gets_a_time_to_retry(start):
    proxy = start(rate="1r/m")  # 20 requests beyond it are allowed
    for url in urls(proxy):
        arguments = {"certificates": proxy.certificate, "headers": ALICE, "retries": 0}
        with Client(url, "en_de", **arguments) as client, pytest.raises(ConnectionError) as refused:
            for _ in range(40):
                client.status()
        assert "too many requests" in str(refused.value) or "429" in str(refused.value)
    assert 429 in {entry["status"] for entry in proxy.log()}
    answer = requests.get(
        f"{urls(proxy)[0]}/v1/models/en_de", headers=ALICE, verify=str(proxy.certificate), timeout=60
    )
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


@pytest.mark.parametrize(("fault", "status"), [(refuse("UNAVAILABLE"), 503), (hang_up, 502)])
def test_requests_that_both_servers_refuse_stop_no_other(tmp_path, fault, status):
    backend = Backend({"en_de": {1: None}})
    with before(backend, tmp_path) as proxy:
        for url in urls(proxy):
            arguments = {"certificates": proxy.certificate, "headers": ALICE, "retries": 0}
            with Client(url, "en_de", **arguments) as client:
                for _ in range(3):
                    backend.faults.extend([fault] * 2)
                    with pytest.raises(OSError, match=r"UNAVAILABLE|UNKNOWN"):
                        client.status()
                backend.faults.clear()  # nginx repeats no request of gRPC that was answered
                assert [client.status() for _ in range(4)] == [{1: "AVAILABLE"}] * 4
        assert status in {entry["status"] for entry in proxy.log()}


def test_errors_of_the_proxy_itself_are_json(tmp_path):
    backend = Backend({"en_de": {1: None}})
    with before(backend, tmp_path) as proxy:
        url = f"{urls(proxy)[0]}/v1/models/en_de:predict"
        options = {"headers": ALICE, "verify": str(proxy.certificate), "timeout": 60}
        large = requests.post(url, data=b"x" * (2**20 + 1), **options)
        assert (large.status_code, "1 MB" in large.json()["error"]) == (413, True)
        backend.faults.extend([hang_up] * 2)
        lost = requests.get(url.removesuffix(":predict"), **options)
        assert (lost.status_code, lost.json()) == (502, {"error": "No server answered."})


class Checked:
    """A client whose answers are compared with those that are expected."""

    def __init__(self, client, expected):
        self.client, self.expected = client, expected
        self.batch_size = client.batch_size

    def predict(self, signature, text):
        found = self.client.predict(signature, text=text)["translation"]
        if [each.decode() for each in found] != [self.expected[each] for each in text]:
            raise ValueError(f"a wrong answer to {text}: {found}")


def test_an_update_of_one_server_after_the_other_loses_no_request(
    start, servers, exported, translator, pairs
):
    """Each server is drained, killed as Kubernetes or Docker would, and started with a new version in turn."""
    proxy = start(rate="10000r/s")
    texts = [source for source, _ in pairs[:20]]
    expected = dict(zip(texts, translator.translate(texts), strict=True))
    reports = {}

    def load(url):
        with Client(url, "en_de", certificates=proxy.certificate, headers=ALICE, backoff=0.02) as client:
            reports[url] = load_test(Checked(client, expected), texts, callers=2, seconds=SECONDS)

    threads = [threading.Thread(target=load, args=(url,)) for url in urls(proxy)]
    for thread in threads:
        thread.start()
    version = 1
    while version == 1 or any(thread.is_alive() for thread in threads):
        version += 1
        for server in servers:
            proxy.reload(down=[server])
            server.kill()
            server.start("en_de", version, exported)
            assert server.wait_for("en_de") == version
            proxy.reload()
    for thread in threads:
        thread.join()
    print({url: (len(report.latencies), report.errors) for url, report in reports.items()}, version)
    for report in reports.values():
        assert report.errors == {}, report.messages
        assert len(report.latencies) > 0
    answered = {entry["servers"] for entry in proxy.log() if entry["status"] == 200}
    assert len(answered) >= 4  # both servers, over both protocols


def test_a_server_that_dies_costs_no_request(start, servers, exported, translator, pairs):
    proxy = start(rate="10000r/s")
    texts = [source for source, _ in pairs[:5]]
    expected = dict(zip(texts, translator.translate(texts), strict=True))
    version = servers[0].wait_for("en_de")
    for url in urls(proxy):
        killed = threading.Event()

        def kill_once(killed=killed):
            if not killed.is_set():
                killed.set()
                servers[0].kill()

        # nginx itself sends a request of REST to the other server, and keeps no copy of one of gRPC.
        retries = 0 if url.startswith("https") else 1
        arguments = {"certificates": proxy.certificate, "headers": ALICE, "retries": retries}
        with Client(url, "en_de", **arguments) as client:
            checked = Checked(client, expected)
            report = load_test(checked, texts, callers=4, requests=100, seconds=60, on_request=kill_once)
        assert report.errors == {}, report.messages
        servers[0].start("en_de", version, exported)
        servers[0].wait_for("en_de")
