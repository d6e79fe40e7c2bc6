"""Opens pages in a headless browser, and reads the weights in them."""

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from keras_transformer.plots.viewer import page_of

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 300
# Runs `await test()` of a test's script, and writes its result, or its error, into the page.
RUNNER = """
// Virtual time does not wait for frames.
window.requestAnimationFrame = (act) => setTimeout(act, 0);
window.cancelAnimationFrame = clearTimeout;
window.addEventListener("load", async () => {
  const errors = [];
  window.addEventListener("error", (event) => errors.push(String(event.message)));
  window.addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
  const until = async (holds) => { while (!holds()) await new Promise((resume) => setTimeout(resume, 20)); };
  const drawn = () => new Promise((resume) => setTimeout(resume, 50));
  let result;
  try { result = await test(until, drawn); } catch (error) { errors.push(error.stack); }
  document.body.append(element("pre", { id: "result" }, JSON.stringify({ result, errors })));
});
"""


def run_in_browser(data, script, folder, weights=b"", size=(1280, 900)):
    """Runs a script in a page of the viewer.

    Args:
        data: The page's data.
        script: JavaScript that defines `async function test(until, drawn)`.
        folder: A folder for files.
        weights: The page's weights.
        size: Width and height of the window.

    Returns:
        The result of `test`, from JSON. An error in the page fails the test.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"No browser is installed. Looked for: {', '.join(BROWSERS)}.")
    page = folder / "page.html"
    page.write_text(page_of(data["title"], data, weights, [script, RUNNER]), encoding="utf-8")
    command = [
        browser,
        "--headless",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root gets none
        "--no-first-run",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size[0]},{size[1]}",
        "--virtual-time-budget=120000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SECONDS)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"The page gave no result: {done.stderr[-2000:]}"
    answer = json.loads(html.unescape(found[1]))
    assert not answer["errors"], answer["errors"]
    return answer["result"]


def unpack_weights(entries, content):
    """Reads what `pack_weights` wrote, as the page does: a dict from a name to a float32 array."""
    weights = {}
    for entry in entries:
        shape, size = entry["shape"], int(np.prod(entry["shape"]))
        array = np.frombuffer(content, np.dtype(entry["dtype"]).newbyteorder("<"), size, entry["start"])
        array = array.reshape(shape).astype("float32")
        if entry["dtype"] == "int8":
            scales = np.frombuffer(content, "<f4", shape[entry["channels"]], entry["scales"])
            array = array * (scales if entry["channels"] else scales[:, None])
        weights[entry["name"]] = array
    return weights
