"""Writes the new messages of the documents into the catalogues of docs/locale (`pip install sphinx-intl`).

    python docs/translate.py

Only the pages in PAGES get a catalogue. Those of IN_ENGLISH and the records of decisions appear in English.
"""

import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = (
    "docs/index",
    "docs/which",
    "docs/installation",
    "docs/versions",
    "docs/quickstart",
    "docs/families",
    "docs/add_family",
    "docs/differences",
    "docs/troubleshooting",
    "docs/masks",
    "docs/viewer",
    "docs/explain",
    "docs/training",
    "docs/fine_tuning",
    "docs/tune_labels",
    "docs/scaling",
    "docs/speech",
    "docs/train_your_pairs",
    "docs/run",
    "docs/vocabulary",
    "docs/attention_in_your_model",
    "docs/own_attention",
    "docs/parts",
    "docs/ports",
    "docs/change_a_model",
    "docs/shapes_of_inputs",
    "docs/examples",
    "docs/decoding",
    "docs/own_decoding",
    "docs/decoding_cost",
    "docs/plots",
    "docs/quantization",
    "docs/serving",
    "docs/serve_chat_model",
    "docs/serve_classifier",
    "docs/serve_embedder",
    "docs/serve_translator",
    "docs/servables",
    "docs/keras_hub",
    "docs/export",
    "docs/request_options",
    "docs/docker",
    "docs/kubernetes",
    "docs/kubernetes_https",
    "docs/proxy",
    "docs/fast",
    "docs/watch",
    "docs/client",
    "docs/clients",
    "docs/stream",
    "docs/openai",
    "docs/translate_files",
    "docs/keep_text",
    "docs/evidence",
    "docs/decisions",
    "docs/checkpoint_keys",
    "docs/learn/index",
    "docs/learn/terms",
    "docs/reference/index",
    "docs/reference/command_line",
    "docs/reference/exit_codes",
    "docs/reference/interfaces",
    "docs/reference/short_examples",
    "benchmarks/korean_english",
    "benchmarks/multi30k",
    "benchmarks/serving",
    "SECURITY",
)
# For contributors, who read English in the code, and tables of measurements.
IN_ENGLISH = ("docs/architecture", "benchmarks/README", "benchmarks/tried", "CHANGELOG", "CONTRIBUTING")
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
