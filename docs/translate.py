"""Writes the new messages of the documents into the catalogues of docs/locale (`pip install sphinx-intl`).

    python docs/translate.py

Only the pages in PAGES get a catalogue; the others appear in English.
"""

import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = (
    "docs/index",
    "docs/installation",
    "docs/quickstart",
    "docs/troubleshooting",
    "docs/masks",
    "docs/viewer",
    "docs/training",
    "docs/attention_in_your_model",
    "docs/decoding",
    "docs/plots",
    "docs/quantization",
    "docs/serving",
    "docs/evidence",
    "docs/learn/index",
    "docs/learn/terms",
    "benchmarks/korean_english",
)
LANGUAGES = ("ko",)


def main():
    """Updates the catalogues; returns the exit code."""
    templates = DOCS / "_build" / "gettext"
    shutil.rmtree(templates, ignore_errors=True)
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-b",
        "gettext",
        "-c",
        str(DOCS),
        str(DOCS.parent),
        str(templates),
    ]
    if code := subprocess.call(build):
        return code
    kept = {templates / f"{page}.pot" for page in PAGES}
    for file in templates.rglob("*.pot"):
        if file not in kept:
            file.unlink()
    languages = [part for language in LANGUAGES for part in ("-l", language)]
    update = [sys.executable, "-m", "sphinx_intl", "update", "-p", str(templates), "-d", str(DOCS / "locale")]
    return subprocess.call([*update, *languages])


if __name__ == "__main__":
    sys.exit(main())
