"""Opens a run in TensorBoard and takes a picture of it in a headless browser.

    python examples/show_tensorboard.py demo/run --output tensorboard.png
    python examples/show_tensorboard.py demo/run --output attention.png --page images

Needs Chromium or Chrome. To look at a run oneself: `tensorboard --logdir demo/run/tensorboard`.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CURVES = (
    "?forceSVG=true&smoothing=0"  # not as WebGL, which a browser without a display leaves out; as measured
)
PAGES = ("timeseries", "scalars", "images", "text", "projector")
SECONDS = 300  # until the server or the browser is given up


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextlib.contextmanager
def serving(log_dir):
    """Serves a folder with TensorBoard meanwhile; gives the address once it has read the folder."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(log_dir), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + SECONDS
        while not _runs(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"TensorBoard shows nothing of {log_dir}.")
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait()


def _runs(address):
    """The names of the runs that TensorBoard has found."""
    try:
        with urllib.request.urlopen(f"{address}/data/runs", timeout=SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return []


def picture(address, path, size=(1500, 1420), wait=20):
    """Opens a page and writes what it shows to a PNG.

    Args:
        address: The page.
        path: The PNG to write.
        size: Width and height of the window, in pixels.
        wait: Seconds that the page gets, by its own clock, to draw itself.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise RuntimeError(f"No browser is installed. Looked for: {', '.join(BROWSERS)}.")
    quiet = ("extensions", "background-networking", "component-update", "sync", "quic", "gpu")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root gets none
            "--no-first-run",
            "--hide-scrollbars",
            *(f"--disable-{part}" for part in quiet),
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            f"--virtual-time-budget={1000 * wait}",
            f"--screenshot={Path(path).resolve()}",
            address,
        ]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SECONDS)
    if not Path(path).exists():
        raise RuntimeError(f"{browser} took no picture: {done.stderr.strip()[-1000:]}")


def main(arguments=None):
    """Takes the picture; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder, or one of event files")
    parser.add_argument("--output", default="tensorboard.png", type=Path, help="the PNG to write")
    parser.add_argument("--page", default="scalars", choices=PAGES, help="which of TensorBoard's pages")
    parser.add_argument("--size", default=(1500, 1420), type=int, nargs=2, help="width and height in pixels")
    options = parser.parse_args(arguments)
    log_dir = options.run / "tensorboard"
    with serving(log_dir if log_dir.is_dir() else options.run) as address:
        picture(f"{address}/{CURVES}#{options.page}", options.output, options.size)
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
