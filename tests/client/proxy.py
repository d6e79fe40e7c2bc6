"""nginx with the configuration that docs/proxy.md shows, before servers in processes of their own."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from servers import make_certificate

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "proxy.md"
SERVER = pathlib.Path(__file__).with_name("serve_export.py")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
PATIENCE = 300  # seconds: a server imports TensorFlow, on a machine that does other work
ALICE = {"authorization": "Bearer KEY-OF-ALICE"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(holds):
    """Waits until a function returns something that is true, and returns it."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


class ServedExport:
    """A server of one version of a model, which can be stopped and started again on its ports."""

    def __init__(self):
        self.rest, self.rpc = free_port(), free_port()
        self.process = None

    def start(self, name, version, folder):
        command = [sys.executable, SERVER, self.rest, self.rpc, f"{name}={version}={folder}"]
        self.process = subprocess.Popen(
            [*map(str, command)],
            cwd=SERVER.parent,
            stdin=subprocess.PIPE,  # it ends with this process
        )

    def wait_for(self, name):
        """Waits until a version answers, and returns its number."""

        def version():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.rest, timeout=5)
                connection.request("GET", f"/v1/models/{name}")
                states = json.loads(connection.getresponse().read())["model_version_status"]
            except OSError:
                return None
            return next((int(each["version"]) for each in states if each["state"] == "AVAILABLE"), None)

        return wait_until(version)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Proxy:
    """A running nginx, whose files are in a folder."""

    def __init__(self, folder, servers, rate="20r/s"):
        self.folder, self.servers, self.rate = folder, servers, rate
        self.port = free_port()
        self.key, self.certificate = make_certificate(folder)
        (folder / "temporary").mkdir()
        self.write()
        self.process = subprocess.Popen(self.command())
        wait_until(self.answers)

    def command(self):
        return [NGINX, "-p", str(self.folder), "-e", str(self.folder / "error.log"), "-c", "nginx.conf"]

    def answers(self):
        assert self.process.poll() is None, (self.folder / "error.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    def write(self, down=()):
        """Writes the configuration of the page, with this machine's ports and files; some servers are down."""
        (text,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        changes = {
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "/etc/nginx/cert.pem": str(self.certificate),
            "/etc/nginx/key.pem": str(self.key),
            "/var/log/nginx": str(self.folder),
            "rate=20r/s": f"rate={self.rate}",
        }
        for i, server in enumerate(self.servers, 1):
            for number, port in ((8501, server.rest), (8500, server.rpc)):
                state = " down" if server in down else ""
                old = f"server 10.0.0.{i}:{number} max_fails=0"
                changes[f"{old};"] = f"server 127.0.0.1:{port} max_fails=0{state};"
        self.write_configuration(text, changes)

    def write_configuration(self, text, changes):
        """Writes a configuration with each old text replaced by a new one."""
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        temporary = "".join(
            f"{kind}_temp_path temporary/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = "daemon off;\npid nginx.pid;\nworker_processes 1;\nevents {}\n"
        if os.geteuid() == 0:  # the workers would not be allowed to use the folder
            head = f"user root;\n{head}"
        (self.folder / "nginx.conf").write_text(f"{head}http {{\n{temporary}{text}}}\n", encoding="utf-8")

    def reload(self, down=()):
        """Takes up the configuration again, and waits for the requests that came before."""
        self.write(down)
        before = self.workers()
        subprocess.run([*self.command(), "-s", "reload"], check=True, timeout=PATIENCE)
        wait_until(lambda: not before & self.workers())

    def workers(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(children.split())

    def log(self):
        """Returns the entries of the log. nginx writes an entry after the answer, so the last ones may come late."""
        file, written = self.folder / "requests.log", -1
        while written != (written := file.stat().st_size):
            time.sleep(1)
        return [json.loads(line) for line in file.read_text().splitlines()]

    def close(self):
        self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
