"""Documents and code say the same: versions, extras, commands, options, families, signatures, server files."""

import configparser
import functools
import re
import shlex
import types
from pathlib import Path

import pytest
from budgets import BUDGETS, Result

import keras_transformer as kt
from keras_transformer import serving
from keras_transformer.cli.parser import make_parser
from keras_transformer.decoding import CONSTRAINTS, STRATEGIES
from keras_transformer.huggingface import FAMILIES
from keras_transformer.huggingface.sentence_embeddings import POOLINGS
from keras_transformer.serving.server import kubernetes, server_files

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "course/**/*.md", "examples/**/*.md")
PAGES = [page for folder in FOLDERS for page in sorted(ROOT.glob(folder)) if "_build" not in page.parts]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def found_in_pages(pattern):
    """Pairs of the name of a page and what a pattern finds in it."""
    texts = ((page.name, page.read_text(encoding="utf-8")) for page in PAGES)
    return {(name, found) for name, text in texts for found in re.findall(pattern, text, re.MULTILINE)}


def setup():
    options = configparser.ConfigParser()
    options.read(ROOT / "setup.cfg")
    return options


def section(text, heading):
    """The text below a heading of the second rank."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(text):
    """The first cell of each row of the tables of a text, without their heads."""
    return [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| `")]


def minor_versions(requirement):
    """The minor versions between the bounds of a requirement such as `keras>=3.15,<3.17`."""
    major, first, last = map(int, re.search(r">=(\d+)\.(\d+).*<\d+\.(\d+)", requirement).groups())
    return [f"{major}.{minor}" for minor in range(first, last)]


def test_versions_are_those_of_setup_cfg():
    needs = {
        re.split("[<>=]", line)[0]: minor_versions(line)
        for line in setup()["options"]["install_requires"].splitlines()
        if re.match(r"(keras|tensorflow)>", line)
    }
    classifiers = re.findall(r"Python :: (3\.\d+)", setup()["metadata"]["classifiers"])
    table = {
        row[1]: row[2]
        for row in (list(map(str.strip, row.split("|"))) for row in read("docs/versions.md").splitlines())
        if len(row) > 3
    }
    assert table["Python"] == f"{classifiers[0]} to {classifiers[-1]}"
    assert table["Keras"] == ", ".join(needs["keras"])
    assert table["TensorFlow"] == ", ".join(needs["tensorflow"])
    versions = {"Python": classifiers, "Keras": needs["keras"], "TensorFlow": needs["tensorflow"]}
    spans = [f"{name} {each[0]}–{each[-1]}" for name, each in versions.items()]
    for name in ("README.md", "README.ko.md"):
        assert " · ".join(spans) in read(name).replace("~", "–")
    assert f"Python {table['Python']}" in read("docs/installation.md")


def test_the_table_of_extras_is_that_of_setup_cfg():
    rows = re.findall(r"^\| `pip install (?:-e )?'\.\[(\w+)\]'`", read("docs/installation.md"), re.MULTILINE)
    assert sorted(rows) == sorted(setup()["options.extras_require"])


def commands():
    """The parser of each command."""
    return next(action.choices for action in make_parser()._actions if isinstance(action.choices, dict))


def test_the_reference_lists_the_commands_of_the_parser():
    (row,) = (row for row in read("docs/reference/index.md").splitlines() if "| `kt.cli` |" in row)
    listed = [name.removeprefix("keras-transformer ") for name in re.findall(r"`([a-z -]+)`", row)]
    assert listed == list(commands())
    (listed,) = re.findall(r"^- `keras-transformer (train \|[^`]+)`", read("CHANGELOG.md"), re.MULTILINE)
    assert listed.split()[::2] == list(commands()) and set(listed.split()[1::2]) == {"|"}


def command_lines(text):
    """The lines of the code of a document that call the command, without their comments."""
    for language, block in re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE):
        if language == "python":
            continue
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:.*\|)?\s*(?:[\w./$-]*/)?keras-transformer (\S.*)", line)
            if found:
                yield found[1]


def test_the_parser_takes_every_command_line_of_the_documents(capsys):
    parser, seen = make_parser(), []
    for page in PAGES:
        for line in command_lines(page.read_text(encoding="utf-8")):
            words = shlex.split(re.split(r"\s#|[|<>;&]", line)[0].replace("$seed", "1"))
            if words[0] in ("COMMAND", "--help", "--version"):
                continue
            try:
                parser.parse_args(words)
            except SystemExit:
                pytest.fail(f"{page.name}: {line}\n{capsys.readouterr().err}")
            seen.append(words[0])
    assert len(seen) > 100 and len(set(seen)) > len(commands()) - 3


def test_the_reference_and_the_readme_name_as_many_families_as_there_are():
    for name in ("README.md", "README.ko.md", "docs/reference/index.md"):
        (number,) = re.findall(r"\[(\d+)[^\]]*\]\([^)]*families\.md\)", read(name))
        assert int(number) == len(FAMILIES), name


def test_the_table_of_checkpoints_has_a_row_for_each_family():
    table = read("docs/families.md").partition("| `model_type` |")[2].partition("\n\n")[0]
    listed = {name for cell in first_cells(table) for name in re.findall(r"`([\w-]+)`", cell)}
    assert listed - {"use_bidirectional_attention"} == set(FAMILIES)


def test_the_table_of_checkpoints_says_whose_tokenizers_are_read_only():
    table = read("docs/families.md").partition("| `model_type` |")[2].partition("\n\n")[0]
    said = {
        name
        for row in table.splitlines()
        if "the tokenizer is read, not written" in row
        for name in re.findall(r"`([\w-]+)`", row.split("|")[1])
    }
    refuses = FAMILIES["pegasus"].tokenizer.write
    assert said == {
        name for name, family in FAMILIES.items() if getattr(family.tokenizer, "write", None) is refuses
    }
    with pytest.raises(ValueError, match="copy the files of the tokenizer"):
        refuses((), ROOT, None)


SIGNATURES = {
    name: getattr(serving, name).signatures_class.descriptions
    for name in dir(serving)
    # A `TermTranslator` works in Python alone.
    if hasattr(getattr(serving, name), "signatures_class") and name != "TermTranslator"
}


@pytest.mark.tensorflow
def test_the_table_of_servables_names_each_signature():
    rows = [list(map(str.strip, row.split("|"))) for row in read("docs/servables.md").splitlines()]
    table = {row[1].split("`")[1]: row[3] for row in rows if len(row) == 5 and row[1].startswith("`")}
    assert set(SIGNATURES) <= set(table)
    for name, descriptions in SIGNATURES.items():
        missing = [each for each in descriptions if f"`{each}`" not in table[name]]
        assert not missing, f"{name}: {missing}"


@pytest.mark.tensorflow
def test_the_table_of_an_export_has_the_signatures_of_a_translator(loaded):
    table = section(read("docs/export.md"), "Signatures")
    rows = [row.split("|")[1:4] for row in table.splitlines() if row.startswith("| `")]
    listed = {name.strip(" `"): set(re.findall(r"`(\w+)`", gives)) for name, _, gives in rows}
    assert list(listed) == list(SIGNATURES["Translator"])
    assert listed == {name: set(loaded.signatures[name].structured_outputs) for name in listed}


def test_server_files_have_the_settings_that_the_pages_name():
    docker, page = read("docs/docker.md"), read("docs/kubernetes.md")
    batching = next(row for row in docker.splitlines() if row.startswith("| `batching.config`"))
    assert re.findall(r"\d+", batching) == [
        str(server_files.WAIT_MICROSECONDS // 1000),
        str(server_files.STEPS_PER_BATCH),
        str(server_files.MAX_WAITING_BATCHES),
    ]
    rows = {row.split("|")[1].strip(): row for row in page.splitlines() if row.startswith("| ")}
    assert f"{kubernetes.CPUS} CPU for a portable export, {kubernetes.XLA_CPUS} for" in rows["`resources`"]
    assert f"{kubernetes.SERVER_GIB} GiB" in rows["`resources`"]
    assert (
        kubernetes.BATCHES_PER_CPU == 2
        and "two batches at once for each CPU" in rows["`batching.pod.config`"]
    )
    assert f"{kubernetes.DRAIN} seconds, in a grace period of {kubernetes.DRAIN + 5}" in rows["`preStop`"]
    assert f"lives {kubernetes.CONNECTION_AGE} seconds" in rows["`--grpc_channel_arguments`"]
    assert f"user {kubernetes.USER}" in rows["`securityContext`"] and f"user {kubernetes.USER}" in docker


def test_the_image_of_the_server_is_the_same_in_all_documents():
    images = found_in_pages(r"tensorflow/serving:[\w.-]+")
    images = {image.removesuffix("-gpu") for page, image in images if page != "CHANGELOG.md"}
    assert images == {server_files.IMAGE}


def test_public_names_in_the_documents_exist():
    wrong = []
    for page, name in found_in_pages(r"`kt\.([A-Za-z_]\w*(?:\.\w+)*)[`(]"):
        try:
            functools.reduce(getattr, name.split("."), kt)
        except AttributeError:
            wrong.append(f"{page}: kt.{name}")
    assert not wrong


def test_files_that_the_documents_name_exist():
    named = found_in_pages(
        r"`(?:pytest )?((?:tests|benchmarks|examples)/[\w./-]+\.(?:py|md|jsonl|json|log|mjs|go))`"
    )
    assert len(named) > 30 and not {each for each in named if not (ROOT / each[1]).exists()}


def test_every_target_of_make_that_a_document_names_exists():
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    named = {name for _, name in found_in_pages(r"(?:^|`)make ([a-z][\w-]*)")}
    assert len(named) > 10 and named <= targets, named - targets


def test_make_test_ends_with_the_results_of_both_backends(tmp_path, monkeypatch):
    written = types.SimpleNamespace(
        build_summary_stats_line=lambda: ([("1 failed", {}), ("3 passed", {})], "red")
    )
    monkeypatch.setenv("TEST_RESULTS", str(tmp_path / "results"))
    for backend in ("tensorflow", "jax"):
        monkeypatch.setenv("KERAS_BACKEND", backend)
        Result().pytest_terminal_summary(written)
    assert read(tmp_path / "results") == "tensorflow: 1 failed, 3 passed\njax: 1 failed, 3 passed\n"
    recipe = re.search(r"^test:\n(?:\t.*\n)+", read("Makefile"), re.MULTILINE)[0].splitlines()
    assert recipe[2].endswith("test-quick test-contracts TEST_RESULTS=$(VENV)/results.txt")
    assert recipe[3] == "\t@cat $(VENV)/results.txt"


def test_contributing_says_how_long_the_quick_tests_take():
    """Budgets are seconds of one of two workers; the contracts on JAX take a minute more."""
    minutes = sum(BUDGETS.values()) / 2 / 60 + 1
    names = dict(zip(["five", "six", "seven", "eight", "nine", "ten"], range(5, 11), strict=True))
    (said,) = re.findall(r"on both backends: (\w+) minutes on two cores", read("CONTRIBUTING.md"))
    assert abs(names[said] - minutes) <= 1


def test_two_pages_say_the_same_time_of_the_demo():
    times = [
        re.findall(r"in about (\w+) minutes on two cores", read(name))
        for name in ("README.md", "docs/quickstart.md")
    ]
    assert times[0] == times[1] == times[0][:1]


def test_the_poolings_of_sentence_embeddings_are_those_that_are_read():
    said = [set(re.findall(r'"(\w+)"', sentence)) for _, sentence in found_in_pages("Poolings [^;.]*")]
    assert said and all(names == set(POOLINGS) for names in said), said


def test_the_constraints_and_strategies_of_the_page_are_all_there_are():
    page = read("docs/decoding.md")
    listed = {re.match(r"`(\w+)", cell)[1] for cell in first_cells(section(page, "Constraints"))}
    assert listed == set(CONSTRAINTS)
    assert all(f"`{name}" in page for name in STRATEGIES)


def test_classes_are_in_the_module_that_the_reference_names():
    rows = re.findall(r"^\| (.+) \| (`kt\.[^|]+) \|$", read("docs/reference/index.md"), re.MULTILINE)
    assert len(rows) > 15
    for names, where in rows:
        found = [getattr(kt, name) for name in re.findall(r"`kt\.(\w+)`", where)]
        classes = re.findall(r"`([A-Z]\w+)[`(]", names)
        assert [name for name in classes if not any(hasattr(module, name) for module in found)] == [], where
