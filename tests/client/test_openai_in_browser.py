"""`openai_app` asked by web pages: which origins may ask, and the page of docs/openai.md in Chromium."""

import asyncio
import contextlib
import functools
import http.server
import os
import queue
import re
import shutil
import subprocess
import threading
import urllib.parse
from pathlib import Path

import pytest
import requests

pytest.importorskip("tensorflow_serving")
pytest.importorskip("openai", reason="the package openai is not installed: pip install openai")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[proxy]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install -e '.[proxy]'")
import test_openai
from test_openai import KEY, PROMPT, TEMPLATE, running

from keras_transformer.client import AsyncClient, Client, openai_app

pytestmark = pytest.mark.slow
models = test_openai.models

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SITE = "https://my.site"
DOCUMENT = Path(__file__).parents[2] / "docs" / "openai.md"
# Asks once, and sends the answer and the lengths that it had to the page's own server.
ACT = """<script>
  const lengths = [], answer = document.querySelector("#answer");
  new MutationObserver(() => lengths.push(answer.textContent.length)).observe(answer, { childList: true });
  document.forms[0].question.value = "one";
  addEventListener("load", () => document.forms[0].requestSubmit());
</script>"""
END = "answer.append(String(error)))"
REPORT = """.finally(() => setTimeout(() =>
  fetch("/done?" + new URLSearchParams({ answer: answer.textContent, lengths }))))"""


def preflight(address, origin, **headers):
    """Asks as a browser does before it sends a page's JSON and key."""
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    return requests.options(
        f"{address}/chat/completions", headers={"Origin": origin, **asked, **headers}, timeout=30
    )


def test_the_pages_of_a_named_origin_may_ask_and_no_others(url):
    with running(openai_app({"chat": AsyncClient(url, "chat")}, key=KEY, origins=[SITE])) as address:
        found = preflight(address, SITE, **{"Access-Control-Request-Private-Network": "true"})
        assert found.status_code == 200 and found.headers["Access-Control-Allow-Origin"] == SITE
        assert "authorization" in found.headers["Access-Control-Allow-Headers"].lower()
        assert "Access-Control-Allow-Credentials" not in found.headers
        for other in ("https://my.site.evil.example", "http://my.site", "https://other.my.site", "null"):
            found = preflight(address, other)
            assert found.status_code == 400 and "Access-Control-Allow-Origin" not in found.headers
            found = requests.get(f"{address}/models", headers={"Origin": other}, timeout=30)
            assert "Access-Control-Allow-Origin" not in found.headers
        # A page can read why it is refused.
        found = requests.get(f"{address}/models", headers={"Origin": SITE}, timeout=30)
        assert found.status_code == 401 and found.headers["Access-Control-Allow-Origin"] == SITE
        assert preflight(address, SITE, Host="evil.example").status_code == 400
    with running(openai_app({"chat": AsyncClient(url, "chat")})) as address:
        found = preflight(address, SITE)
        assert found.status_code == 405 and "Access-Control-Allow-Origin" not in found.headers


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyError("10.1.2.3"), 500, "The proxy failed"),
        (ValueError("10.1.2.3"), 500, "The proxy failed"),
        (OSError("10.1.2.3"), 502, "does not answer"),
    ],
    ids=["proxy", "value", "server"],
)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_page_reads_why_its_request_failed_and_the_log_more(error, status, message, is_stream, caplog):
    class Broken:
        async def fail(self, *arguments, **options):
            raise error

        predict = next_piece = fail

        async def close(self):
            pass

    body = {"model": "chat", "prompt": "one", "stream": is_stream}
    with running(openai_app({"chat": Broken()}, origins=[SITE])) as address:
        found = requests.post(f"{address}/completions", json=body, headers={"Origin": SITE}, timeout=30)
    assert found.status_code == status and found.headers["Access-Control-Allow-Origin"] == SITE
    assert message in found.json()["error"]["message"] and "10.1" not in found.text
    assert "10.1.2.3" in caplog.text and (status != 500 or "in fail" in caplog.text)


def test_a_caller_that_leaves_while_it_asks_is_no_failure(caplog):
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": headers,
    }
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(openai_app({"chat": None})(scope, receive, send))
    assert sent[0]["status"] == 400 and "failed" not in caplog.text


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves files, and keeps what a page reports."""

    def do_GET(self):
        path, _, report = self.path.partition("?")
        if path == "/done":
            self.server.reports.put(dict(urllib.parse.parse_qsl(report)))
        super().do_GET()


@contextlib.contextmanager
def site_of(folder):
    """Serves the files of a folder; gives their origin, and the queue of the reports."""
    handler = functools.partial(Site, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.reports = queue.Queue()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.reports
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def browser_at(address, folder):
    """Opens a page in a browser without a window."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"No browser is installed. Looked for: {', '.join(BROWSERS)}.")
    command = [
        program,
        "--headless",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root gets none
        "--no-first-run",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",  # without it the browser ends at once
        f"--user-data-dir={folder / 'profile'}",
        address,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "another"])
def test_the_page_of_the_document_shows_an_answer_as_it_grows(url, tmp_path, is_named):
    (page,) = re.findall(r"```html\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(page.splitlines()) <= 34
    with Client(url, "chat") as client:
        (expected,) = client.generate([PROMPT], max_length=20)
    with site_of(tmp_path) as (origin, reports):
        app = openai_app({"chat": AsyncClient(url, "chat")}, TEMPLATE, origins=[origin if is_named else SITE])
        with running(app) as address:
            for old, new in (
                ("http://127.0.0.1:8000/v1", address),
                ("stream: true", "stream: true, temperature: 0, max_tokens: 20"),
                (END, END + REPORT),
            ):
                assert page.count(old) == 1
                page = page.replace(old, new)
            (tmp_path / "page.html").write_text(page.replace("<script", ACT + "<script", 1), encoding="utf-8")
            with browser_at(f"{origin}/page.html", tmp_path):
                report = reports.get(timeout=300)
    answer, lengths = report["answer"], [int(length) for length in report["lengths"].split(",")]
    if is_named:
        assert answer == expected and lengths[-1] == len(expected)
        assert len(set(lengths)) > 2
    else:
        assert "Failed to fetch" in answer
