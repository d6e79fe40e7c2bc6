"""The attention viewer, as a browser runs it."""

import base64
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from browser import run_in_browser, unpack_weights

from keras_transformer import layers, models
from keras_transformer.decoding import Beam
from keras_transformer.plots import attention
from keras_transformer.plots.viewer_live import describe_translator, named_weights
from keras_transformer.serving import Classifier, ImageClassifier, Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

pytestmark = pytest.mark.slow
EMPTY = {"title": "Test", "live": None, "reason": None, "records": []}
# Texts for normalisation and segmentation: ligatures, wide and composed letters, spaces, controls, unknown characters.
HARD_TEXTS = [
    "ﬁne １２３ ＡＢＣ ①②", "\u1112\u1161\u11ab글 \u3131\u314f e\u0301 Ω \u212b",
    "  two  spaces\u3000wide\u00a0fixed\ttab  ", "저는\x01 학생\u200b입니다.\x07",
    "😀😀 zzz 😀 \U0001f468\u200d\U0001f469\u200d\U0001f467", "▁저는 ▁▁ 학생▁", "<s> </s> <unk> <pad> <0x41>", "",
    "   ", "\u0915\u094d\u0937 \u0e01\u0e33 \ufb01\ufdfa \ufeff bom", "A man runs — “quotes” … ½ ㎏ ㍿",
    "eeeee ooooo lllll sssss ttttttt",
]  # fmt: skip
# Runs each case's model and returns what it computes. Numbers are rounded, as JSON writes them long.
COMPUTE = """
const short = (rows) => rows.map((row) => [...row].map((x) => Math.round(x * 1e6) / 1e6));
const finish = (steps) => { for (;;) { const { done, value } = steps.next(); if (done) return value; } };
async function test() {
  return data.cases.map(({ live, weights, texts, width }) => {
    const page = new LivePage(live, bytesOf(weights));
    return texts.map((text) => {
      const found = finish(page.translate(text, width));
      if (!found) return null;
      const view = liveView(found, found.finished[0], page);
      const weights = Object.fromEntries(view.groups.map((group) => [group.name,
        Array.from({ length: group.layers }, (_, layer) => Array.from({ length: group.heads }, (_, head) =>
          short(group.rows.map((_, row) => group.weights(layer, head, row)))))]));
      return { ids: found.ids, answer: view.answer, score: view.score, weights,
        written: pathOf(found.finished[0]).slice(1).map((each) => each.token) };
    });
  });
}
"""


def with_stored_weights(translator, description, content):
    """Returns a copy of a translator with the weights that its page holds."""
    stored, original = unpack_weights(description["tensors"], content), named_weights(translator.model)
    model = type(translator.model).from_config(translator.model.get_config())
    model.set_weights(translator.model.get_weights())
    for variable in model.weights:
        value = keras.ops.convert_to_numpy(variable).ravel()
        names = [name for name, array in original.items() if np.array_equal(array.ravel(), value)]
        variable.assign(stored[names[0]].reshape(variable.shape))
    return translator.changed(model=model)


def check_translations(translator, texts, answers):
    """Compares the translations of the page with those of a Python translator of the same weights."""
    expected = [text or None for text in translator.translate(texts)]
    assert [answer and answer["answer"] for answer in answers] == expected


def check_case(translator, texts, answers):
    """Compares what the page computed with what Python computes from the same weights."""
    model, compared = translator.model, 0
    for text, answer in zip(texts, answers, strict=True):
        if answer is None:
            continue
        source = [*translator.source_tokenizer.tokenize([text])[0].numpy(), model.eos_id]
        assert answer["ids"] == source
        written = answer["written"]
        inputs = {"source": np.array([source]), "target": np.array([[model.bos_id, *written[:-1]]])}
        logits, scores = model(inputs, return_attention_scores=True)
        for name, weights in answer["weights"].items():
            np.testing.assert_allclose(weights, np.stack(scores[name])[:, 0], atol=1e-3)
            compared += np.size(weights)
        text = translator.target_tokenizer.detokenize([written])[0].numpy().decode("utf-8", "replace")
        assert answer["answer"] == text
        log_probs = keras.ops.log_softmax(logits)[0].numpy()
        if translator.strategy.width == 1:
            assert log_probs.argmax(axis=-1).tolist() == written
        expected = log_probs[np.arange(len(written)), written].sum()
        assert answer["score"] == pytest.approx(expected, abs=1e-3 * len(written))
    assert compared


def case_of(translator, texts, width, precision):
    description, content = describe_translator(translator, precision)
    case = {
        "live": description,
        "weights": base64.b64encode(content).decode(),
        "texts": texts,
        "width": width,
    }
    return case, with_stored_weights(translator, description, content)


def test_page_translates_and_attends_as_python_does(translator, pairs, tmp_path):
    korean = [source for source, _ in pairs]
    texts = (korean * 2)[:40] + HARD_TEXTS[:10]
    assert len(texts) == 50
    greedy, stored = case_of(translator, texts, 1, "float16")
    beam, stored_beam = case_of(translator.changed(strategy=Beam(3)), texts[:12], 3, "int8")
    answers = run_in_browser({**EMPTY, "cases": [greedy, beam]}, COMPUTE, tmp_path)
    for case, given, answer in ((stored, texts, answers[0]), (stored_beam, texts[:12], answers[1])):
        check_translations(case, given, answer)
        check_case(case, given, answer)


VARIANTS = [
    {"normalize_first": True, "activation": "gelu", "norm": "rms", "output_bias": True},
    {"activation": "silu", "positions": layers.LearnedPositions(29), "share_embeddings": True},
    {"activation": "gelu_tanh", "positions": layers.PositionalEncoding(500.0, interleaved=False)},
    {"num_decoder_layers": 3, "d_model": 22, "embedding_scale": 1.5},
    {"target_vocab_size": 200},
]


def test_page_runs_every_variant(tokenizer, sentences, tmp_path):
    cases, stored = [], []
    other = SentencePieceTokenizer.train(sentences, 200)
    assert other.vocab_size == 200 < tokenizer.vocab_size
    for i, variant in enumerate(VARIANTS):
        keras.utils.set_random_seed(i)
        sizes = {"num_layers": 2, "d_model": 10, "num_heads": 2, "d_ff": 13, **variant}
        model = models.Transformer(tokenizer.vocab_size, **sizes)
        model.set_weights([np.random.normal(size=w.shape, scale=0.4) for w in model.weights])
        target = other if model.target_vocab_size == other.vocab_size else None
        translator = Translator(model, tokenizer, target, max_source_length=20, max_length=5)
        case, copy = case_of(translator, ["저는 man"], 1, "float16")
        cases.append(case)
        stored.append(copy)
    answers = run_in_browser({**EMPTY, "cases": cases}, COMPUTE, tmp_path)
    for copy, answer in zip(stored, answers, strict=True):
        check_case(copy, ["저는 man"], answer)


def tokenizers(sentences):
    for options in (
        {},
        {"model_type": "bpe"},
        {"byte_fallback": True},
        {"byte_fallback": True, "model_type": "bpe"},
    ):
        yield SentencePieceTokenizer.train(sentences, 600, character_coverage=0.98, **options)


def test_page_tokenizes_as_sentencepiece_does(tokenizer, sentences, tmp_path):
    trained, texts = list(tokenizers(sentences)), HARD_TEXTS + sentences
    random = np.random.default_rng(5)
    rows = [random.integers(0, 700, size=random.integers(1, 9)).tolist() for _ in range(200)]
    rows += [[4, 4, 5], [1, 4, 9], [3, 2, 4, 7]]
    descriptions = []
    for each in trained:
        model = models.Transformer(each.vocab_size, num_layers=1, d_model=4, num_heads=2, d_ff=3)
        description, _ = describe_translator(Translator(model, each))
        descriptions.append(description["source_tokenizer"])
    script = """
      async function test() {
        return data.tokenizers.map((each) => {
          const tokenizer = new SentencePiece(each);
          const decoded = data.rows.map((ids) => tokenizer.decode(ids.filter((id) => ![0, 2, 3].includes(id))));
          return [data.texts.map((text) => tokenizer.encode(text)), decoded];
        });
      }"""
    data = {**EMPTY, "tokenizers": descriptions, "texts": texts, "rows": rows}
    answers = run_in_browser(data, script, tmp_path)
    for each, (ids, decoded) in zip(trained, answers, strict=True):
        for text, found, expected in zip(texts, ids, each.tokenize(texts), strict=True):
            assert found == expected.numpy().tolist(), text
        texts_of_rows = each.detokenize(tf.ragged.constant(rows, tf.int32)).numpy()
        for row, found, expected in zip(rows, decoded, texts_of_rows, strict=True):
            assert found == expected.decode("utf-8", "replace"), row


USE = """
const value = (id) => byId(id).textContent;
const pixels = (canvas) => new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size;
const unnamed = () => [...document.querySelectorAll("button, input, select, [tabindex]")]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.labels?.length || each.ariaLabel || each.hasAttribute("aria-labelledby")))
  .filter((each) => !each.textContent.trim())
  .map((each) => each.outerHTML.slice(0, 80));
"""


def test_reader_uses_a_live_page(translator, tmp_path):
    first, second = "저는 학생입니다.", "</script><b>저는"
    page = attention(translator, [first, second])
    script = (
        USE
        + """
      async function test(until, drawn) {
        const idle = () => until(() => viewer.view && !viewer.busy);
        await idle();
        const result = { first: value("answer"), unnamed: unnamed(), rows: viewer.group.rows.length };
        byId("forward").click();
        await drawn();
        result.step = value("step-text");
        result.lines = pixels(byId("threads"));
        result.opened = [value("map-title"), document.querySelectorAll("#pair canvas").length];
        const canvas = byId("map").querySelector("canvas"), frame = canvas.getBoundingClientRect();
        const { left, top, cell } = viewer.map;
        const place = { clientX: frame.left + left + 1.5 * cell, clientY: frame.top + top + 0.5 * cell };
        canvas.dispatchEvent(new MouseEvent("click", { ...place, bubbles: true }));
        await drawn();
        result.clicked = [viewer.state.row, viewer.state.column];
        byId("forward").click();
        const means = viewer.group.weights(0, MEAN, 1), heads = viewer.group.heads;
        const each = Array.from({ length: heads }, (_, h) => viewer.group.weights(0, h, 1));
        const errors = means.map((x, i) => Math.abs(x - each.reduce((sum, row) => sum + row[i], 0) / heads));
        result.meanError = Math.max(...errors);
        byId("grid").querySelectorAll("button")[1].click(); // the first head of the first layer
        await drawn();
        byId("map").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
        await drawn();
        result.after = [viewer.state.row, value("said")];
        const { layer, head, row, column } = viewer.state;
        result.weight = viewer.group.weights(layer, head, row)[column];
        byId("groups").querySelectorAll("input")[1].click();
        byId("numbers").open = byId("table").open = true;
        await drawn();
        await drawn();
        result.title = value("map-title");
        result.channels = byId("numbers").querySelectorAll("tr").length - 1;
        result.tableRows = byId("table").querySelectorAll("tr").length - 1;
        byId("text").value = data.texts[1];
        byId("width").value = 3;
        byId("go").click();
        await idle();
        await drawn();
        result.second = value("answer");
        result.bold = document.querySelectorAll("main b:not(#pair b)").length;
        const results = [...byId("tree").querySelectorAll("[role=button]")];
        result.results = results.length;
        const before = value("answer");
        results.at(-1).dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
        await drawn();
        result.others = value("answer") !== before || results.length === 1;
        byId("text").value = "  ";
        byId("go").click();
        await until(() => value("notice").startsWith("There is nothing"));
        result.hidden = byId("views").hidden;
        return result;
      }"""
    )
    found = run_in_browser(page.data, script, tmp_path, page.weights)
    stored = with_stored_weights(translator, *describe_translator(translator))
    answers = stored.translate([first])
    assert found["first"].startswith(f"{answers[0]} (log probability ") and found["unnamed"] == []
    assert found["step"].startswith(f"2 of {found['rows']}: writes ") and found["lines"] > 10
    row, said = found["after"]
    assert row == 2 and said.endswith(f": {found['weight']:.3f}")
    title, drawings = found["opened"]
    assert re.fullmatch("Cross-attention, layer [12], mean of heads", title) and drawings == 2
    assert found["clicked"] == [0, 1] and found["meanError"] < 1e-6
    assert found["title"] == "Decoder, layer 1, head 1"
    assert found["channels"] == 24 and found["tableRows"] == 3
    beam = stored.changed(strategy=Beam(3)).translate([second])
    assert found["second"].startswith(f"{beam[0]} (log probability ")
    assert found["bold"] == 0 and found["results"] >= 1 and found["others"] and found["hidden"]


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_long_texts_fit_the_window(translator, tmp_path, size):
    page = attention(translator, "저는 학생입니다. " * 40)
    script = """
      async function test(until, drawn) {
        await until(() => viewer.view && !viewer.busy);
        byId("groups").querySelectorAll("input")[0].click();
        await drawn();
        byId("lines").scrollLeft = 900;
        byId("map").scrollTop = 300;
        await drawn();
        const widths = [...document.querySelectorAll("#threads, #map canvas")].map((each) => each.clientWidth);
        return [viewer.group.rows.length, document.documentElement.scrollWidth, innerWidth, Math.max(...widths)];
      }"""
    rows, width, window, widest = run_in_browser(page.data, script, tmp_path, page.weights, size)
    assert rows >= 200 and width <= window and widest <= window


def test_recorded_pages_show_every_kind_of_model(translator, tmp_path):
    encoder = models.EncoderModel(
        layers.Embeddings(260, 6), layers.Encoder(2, 3, 11), head=models.ClassificationHead(2)
    )
    vision = models.VisionTransformer((6, 4), 2, 4, layers.Encoder(1, 2, 8), num_classes=3)
    images = np.random.default_rng(3).normal(size=(2, 6, 4, 3)).astype("float32")
    searching = translator.changed(strategy=Beam(3))
    pages = [
        attention(searching, "저는 학생입니다.", live=False),
        attention(Classifier(encoder, ByteTokenizer()), ["a </script> bear", "two"]),
        attention(ImageClassifier(vision), images),
    ]
    script = (
        USE
        + """
      async function test(until, drawn) {
        await drawn();
        const record = byId("record"), seen = [];
        for (const option of record.options) {
          record.value = option.value;
          record.dispatchEvent(new Event("change"));
          byId("back").click();
          byId("forward").click();
          await drawn();
          byId("grid").querySelectorAll("button")[1].click(); // the first head: it has queries and keys
          await drawn();
          const { layer, head, row } = viewer.state;
          const sum = [...viewer.group.weights(layer, head, row)].reduce((a, b) => a + b);
          const pictures = [...byId("pictures").querySelectorAll("canvas")];
          if (pictures.length) pictures[2].click();
          await drawn();
          seen.push({ text: option.textContent, sum, map: pixels(byId("map").querySelector("canvas")),
            bars: document.querySelectorAll("#pair canvas").length, lines: byId("lines").checkVisibility(),
            pictures: pictures.map(pixels), head: viewer.state.head, tree: byId("tree").querySelectorAll("rect").length,
            unnamed: unnamed() });
        }
        return seen;
      }"""
    )
    for page, texts in zip(
        pages, [["저는 학생입니다."], ["a </script> bear", "two"], ["Image 1", "Image 2"]], strict=True
    ):
        seen = run_in_browser(page.data, script, tmp_path)
        assert [each["text"] for each in seen] == texts
        for each in seen:
            assert each["sum"] == pytest.approx(1, abs=1e-2) and each["bars"] == 6 and each["map"] > 5
            assert each["unnamed"] == []
            is_image = page is pages[2]
            assert each["lines"] is not is_image and (len(each["pictures"]) == 3) is is_image
            assert (each["tree"] > 5) is (page is pages[0])
            if is_image:
                assert min(each["pictures"]) > 5 and each["head"] == 1


def test_korean_page_speaks_korean(translator, tmp_path):
    page = attention(translator.changed(strategy=Beam(3)), "저는 학생입니다.", language="ko")
    script = """
      async function test(until, drawn) {
        await until(() => viewer.view && !viewer.busy);
        await drawn();
        const ids = ["about", "groups", "heads", "step-text", "map-title", "map-help", "pair-title", "tree-title"];
        const texts = ids.map((id) => byId(id).textContent);
        texts.push(document.title, byId("back").ariaLabel, byId("tree").querySelector("[role=button]").ariaLabel);
        return [document.documentElement.lang, texts];
      }"""
    language, texts = run_in_browser(page.data, script, tmp_path, page.weights)
    assert language == "ko" and len(texts) == 11
    assert all(re.search("[가-힣]", text) for text in texts)
    assert "헤드의 평균" in texts[4] and "보정한 점수" in texts[-1]
