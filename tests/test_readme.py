"""The documents show what happens: their blocks of code run and print what their comments say."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
from contracts import slow_but

import keras_transformer
from keras_transformer.huggingface import FAMILIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
KOREAN = (ROOT / "README.ko.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    file
    for file in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    if file.name != "families.md"
)


def blocks(text):
    """The blocks of Python of a document."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_quick_start_translates_and_exports_as_its_comments_say(tmp_path, monkeypatch, capsys):
    code = re.search(r"## Quick start\n.*?```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(list(filter(None, code.splitlines()))) <= 13
    assert blocks((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")) == [code]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"print\(.*\)  # (\S+ ?\S*?)(?::.*)?\n", code)
    assert capsys.readouterr().out.splitlines()[-2:] == shown
    exported = tf.saved_model.load(str(tmp_path / "export" / "1"))
    answer = exported.signatures["serving_default"](text=tf.constant(["감사합니다"]))
    assert answer["translation"].numpy().tolist() == [b"thank you"]


@pytest.mark.parametrize(
    "part",
    [r"(?m)^(#+) ", r"(?s)```.*?```", r"\]\((?!README)([^)]+)\)", r"(?m)^\| `(examples/\w+\.py)`"],
    ids=["headings", "code", "links", "examples"],
)
def test_the_korean_readme_keeps_step(part):
    # A picture with words in it has a Korean one beside it.
    english, korean = (
        re.findall(part, text) for text in (README, re.sub(r"\.ko\.(png|svg)", r".\1", KOREAN))
    )
    assert sorted(english) == sorted(korean) if part.startswith(r"\]") else english == korean


def test_scores_of_the_readme_are_those_of_the_evidence_to_the_digit():
    def scores(text, heading=""):
        section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0] if heading else text
        return set(re.findall(r"\b\d+\.\d+\b", section))

    english = scores(README, "What to expect from your data")
    evidence = scores((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8"))
    assert len(english) > 4
    assert english == scores(KOREAN, "데이터 규모별 예상 성능")
    assert english <= evidence, english - evidence


@pytest.mark.slow
def test_the_layers_of_the_readme_run():
    code = re.search(r"## Your own layers.*?```python\n(.*?)```", README, re.DOTALL)[1]
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    model = names["model"]
    frozen, adapted = model.decoder.layers
    assert not frozen.trainable_weights and adapted.trainable_weights
    assert adapted.self_attention.query_dense.lora_enabled
    assert adapted.self_attention.key_dense.kernel.dtype == "int8"
    lengths = model.generate([[72, 101, 108]], keras_transformer.Beam(2), max_length=4).lengths
    assert lengths.shape == (1, 1) and 1 <= lengths.numpy()[0, 0] <= 4


@pytest.mark.parametrize(
    "name",
    slow_but(
        ("masks",),
        (
            "masks",
            "plots",
            "parts",
            "attention_in_your_model",
            "training",
            "decoding",
            "reference/short_examples",
        ),
    ),
)
def test_the_blocks_of_a_document_run_in_order_and_print_what_they_say(name, tmp_path, monkeypatch, capsys):
    code = "".join(blocks((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")))
    assert code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{name}.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.+)\n", code)


def test_every_file_that_the_readme_names_exists():
    for name in re.findall(r"`(examples/[\w.]+)`", README):
        assert (ROOT / name).exists(), name


def heading_anchors(text):
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[file.name for file in DOCUMENTS])
def test_every_link_inside_the_repository_leads_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = (document.parent / target).resolve() if target else document
        assert file.is_relative_to(ROOT) and file.exists(), target
        if anchor:
            assert anchor in heading_anchors(file.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("text", [README, KOREAN], ids=["English", "Korean"])
def test_as_many_families_are_named_as_there_are(text):
    (number,) = re.findall(r"\[(\d+)[^\]]*\]\(docs/families\.md\)", text)
    assert int(number) == len(FAMILIES)
