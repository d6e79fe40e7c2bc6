"""The documents show what happens: their blocks of code run and print what their comments say."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
from contracts import slow_but

import keras_transformer

ROOT = Path(__file__).parent.parent

FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
LARGE_TABLES = ("families.md", "differences.md", "checkpoint_keys.md")
DOCUMENTS = [
    file for folder in FOLDERS for file in sorted(ROOT.glob(folder)) if file.name not in LARGE_TABLES
]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


README, KOREAN = page("README.md"), page("README.ko.md")


def blocks(text):
    """The blocks of Python of a document."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_short_and_installs_at_once():
    for text in (README, KOREAN):
        # Tables and code included, as `wc -w` counts them.
        assert len(text.split()) <= 850
        assert len(text.partition("pip install .")[0].split()) <= 120
    (code,) = blocks(README)
    assert len(list(filter(None, code.splitlines()))) <= 15
    # The words that a visitor searches for.
    assert {"Llama", "GPT-2", "chat", "embedding", "streams"} <= set(re.findall(r"[\w-]+", README))


def test_the_readme_proves_that_keras_s_second_attention_reads_padding(capsys):
    (code,) = blocks(README)
    exec(compile(code, "README.md", "exec"), {})
    keras_s, ours = map(float, capsys.readouterr().out.split())
    # The first figure follows from the seed, the second is rounding.
    said = re.search(r"prints (\S+) for Keras and (\S+) for this library", README)
    assert keras_s == pytest.approx(float(said[1]), rel=0.05)
    assert ours < 1e-6 and float(said[2]) < 1e-6


def test_the_figures_about_others_are_in_the_benchmarks():
    section = README.partition("## Why this one")[2].partition("\n## ")[0]
    korean = KOREAN.partition("## 이 라이브러리가 맞을 때")[2].partition("\n## ")[0]
    measured = set(re.findall(r"\d+(?:\.\d+)?", page("benchmarks/README.md")))
    figures = re.findall(r"(?<!TensorFlow )\b(?:\d+\.\d\d|\d{2,3}(?= (?:against|tokens)))\b", section)
    assert len(figures) == 6 and set(figures) <= measured
    assert all(figure in korean for figure in figures)


@pytest.mark.slow
def test_quick_start_translates_and_exports_as_its_comments_say(tmp_path, monkeypatch, capsys):
    (code,) = blocks(page("docs/quickstart.md"))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "quickstart.md", "exec"), {})
    shown = re.findall(r"print\(.*\)  # (\S+ ?\S*?)(?::.*)?\n", code)
    assert capsys.readouterr().out.splitlines()[-2:] == shown
    exported = tf.saved_model.load(str(tmp_path / "export" / "1"))
    answer = exported.signatures["serving_default"](text=tf.constant(["감사합니다"]))
    assert answer["translation"].numpy().tolist() == [b"thank you"]


@pytest.mark.parametrize(
    "part", [r"(?m)^(#+) ", r"(?s)```.*?```", r"\]\((?!README)([^)]+)\)"], ids=["headings", "code", "links"]
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
    evidence = scores(page("docs/evidence.md"))
    assert len(english) == 3
    assert english == scores(KOREAN, "데이터 규모별 예상 성능")
    assert english <= evidence, english - evidence


@pytest.mark.slow
def test_a_model_with_ones_own_attention_is_adapted_quantized_and_exported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    code = "".join(blocks(page("docs/own_attention.md")))
    exec(compile(code, "own_attention.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.+)\n", code)
    model = names["model"]
    frozen, adapted = model.decoder.layers
    assert isinstance(frozen.self_attention, names["CosineAttention"])
    assert not frozen.trainable_weights and adapted.trainable_weights
    assert adapted.self_attention.query_dense.lora_enabled
    assert adapted.self_attention.key_dense.kernel.dtype == "int8"
    lengths = model.generate([[72, 101, 108]], keras_transformer.Beam(2), max_length=4).lengths
    assert lengths.shape == (1, 1) and 1 <= lengths.numpy()[0, 0] <= 4
    answer = tf.saved_model.load("models/hamlet/1").signatures["serving_default"](text=tf.constant(["to be"]))
    assert answer["continuation"].numpy().tolist() == [b", or not to be"]


def test_the_tutorial_holds_out_pairs_that_are_not_trained_on(tmp_path, monkeypatch):
    rows = "".join(f"{i},문장 {i},sentence {i}\n" for i in range(100)) + '100,문장 7,"seven, again"\n'
    (tmp_path / "pairs.csv").write_text(f"number,ko,en\n{rows}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(page("docs/train_your_pairs.md"))
    exec(compile(code, "train_your_pairs.md", "exec"), {})
    parts = [
        keras_transformer.data.read_table(f"{name}.csv", "ko", "en") for name in ("train", "val", "test")
    ]
    assert sum(map(len, parts)) == 101 and all(parts)
    sources = [{korean for korean, _ in part} for part in parts]
    assert not sources[0] & sources[1] and not sources[0] & sources[2] and not sources[1] & sources[2]


RUN = "masks plots parts change_a_model shapes_of_inputs ports attention_in_your_model training decoding own_decoding"


@pytest.mark.parametrize("name", slow_but(("masks",), (*RUN.split(), "reference/short_examples")))
def test_the_blocks_of_a_document_run_in_order_and_print_what_they_say(name, tmp_path, monkeypatch, capsys):
    code = "".join(blocks(page(f"docs/{name}.md")))
    assert code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{name}.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.+)\n", code)


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
