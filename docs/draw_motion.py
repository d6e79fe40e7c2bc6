"""Records the moving pictures of the course as SVG files, for readers without JavaScript. Needs Chromium.

    python docs/draw_motion.py

The pictures go to docs/images: `motion_NAME.svg` in English and `motion_NAME.ko.svg` in Korean.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
SCRIPT = DOCS / "_static" / "motion.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NAMES = [
    f"motion_{name}{language}.svg"
    for name in ("softmax", "clocks", "masks", "beam")
    for language in ("", ".ko")
]


def page_of(names, script=""):
    """Returns a page that shows pictures by their names, and runs a further script."""
    images = "".join(f'<p><img src="{name}" alt=""></p>' for name in names)
    program = f"<script>{SCRIPT.read_text(encoding='utf-8')}</script><script>{script}</script>"
    return f'<!doctype html><meta charset="utf-8">{program}<body>{images}</body>'


def browser():
    """Returns the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def dom_of(page):
    """Returns what a headless browser makes of a page, or None where no browser is installed."""
    program = browser()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        command = [
            program,
            "--headless",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root gets none
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}/profile",
            "--virtual-time-budget=10000",
            "--dump-dom",
            file.as_uri(),
        ]
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=True).stdout


def record():
    """Returns the pictures by their names, a dict of str, or None where no browser is installed."""
    page = dom_of(page_of(NAMES))
    return page and dict(zip(NAMES, re.findall(r"(?<=<div>)<svg.*?</svg>", page, re.DOTALL), strict=True))


def main():
    """Writes the pictures."""
    pictures = record()
    if pictures is None:
        raise SystemExit(f"No browser is installed. Looked for: {', '.join(BROWSERS)}.")
    for name, picture in pictures.items():
        (IMAGES / name).write_text(picture + "\n", encoding="utf-8")
        print(IMAGES / name)


if __name__ == "__main__":
    main()
