"""The attention viewer, as far as Python writes it."""

import base64
import hashlib
import html
import html.parser
import json
import re
from importlib import resources

import keras
import numpy as np
import pytest
import tensorflow as tf
from browser import unpack_weights

from keras_transformer import layers, models, plots
from keras_transformer.cli import main
from keras_transformer.decoding import Beam, MinLength, Sample
from keras_transformer.plots import AttentionPage, attention, viewer
from keras_transformer.plots.viewer_live import (
    CannotRunError,
    describe_translator,
    named_weights,
    pack_weights,
)
from keras_transformer.serving import Classifier, Embedder, ImageClassifier, TextGenerator, Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

TEXT = "저는 학생입니다."
VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", "▁a", "n"]
HOSTILE = "</script><script>alert(1)</script><!-- </style> &lt; {{data}} \u2028 '\""


class Reader(html.parser.HTMLParser):
    """Collects the elements of a page, with the text of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, text):
        if self.elements and self.inside:
            self.texts[-1] += text

    def all(self, tag):
        return [
            (attributes, text)
            for (name, attributes), text in zip(self.elements, self.texts, strict=True)
            if name == tag
        ]


def floats(text, *shape):
    return np.frombuffer(base64.b64decode(text), "<f2").astype("float32").reshape(shape)


def weights_of(group):
    return floats(
        group["weights"], group["layers"], group["heads"], len(group["rows"]), len(group["columns"])
    )


def small_translator(tokenizer, strategy=None, **arguments):
    model = models.Transformer(
        tokenizer.vocab_size, **{"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11, **arguments}
    )
    options = {} if strategy is None else {"strategy": strategy}
    return Translator(model, tokenizer, max_length=7, **options)


@pytest.fixture(scope="module")
def live(translator):
    return attention(translator, TEXT)


@pytest.mark.slow
def test_page_is_one_file_that_may_load_nothing(live):
    reader = Reader(live.html)
    (policy,) = [
        a["content"] for a, _ in reader.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules.keys() == {
        "default-src", "script-src", "style-src", "base-uri", "form-action"
    }  # fmt: skip
    script = reader.all("script")[-1][1]
    for text, rule in ((script, "script-src"), (reader.all("style")[0][1], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert not [a for _, a in reader.elements if {"src", "href", "style", "onclick", "onload"} & a.keys()]
    assert live.is_live and live.reason is None


def test_every_text_of_a_page_is_in_the_file_of_korean_words():
    folder = resources.files(plots)
    scripts = "".join(folder.joinpath(name).read_text("utf-8") for name in viewer.SCRIPTS)
    scripts = re.sub(r'" \+\s+"', "", scripts)
    template = folder.joinpath("viewer.html").read_text("utf-8")
    body = template[template.index("<body>") : template.index('<script type="application/json"')]
    said = set(re.findall(r'\bsay\(\s*"([^"]+)"', scripts))
    said |= {text.strip() for text in re.split("<[^>]*>", body) if re.search("[a-z]", text)} - {"{{title}}"}
    said |= set(re.findall('aria-label="([^"]+)"', body)) | set(viewer.TITLES.values())
    korean = viewer.words_of("ko")
    assert len(said) > 50 and not said - korean.keys()
    assert not [text for text in korean.keys() - said if text not in scripts and text not in template]
    for text, translated in korean.items():
        assert sorted(re.findall(r"{\d}", text)) == sorted(re.findall(r"{\d}", translated)), text
        assert re.search("[가-힣]", translated), text
    page = AttentionPage({"title": "제목", "language": "ko", "live": None, "reason": None, "records": []})
    assert Reader(page.html).all("html")[0][0] == {"lang": "ko"} and not viewer.words_of("en")


def test_no_text_ends_its_element():
    data = {"title": HOSTILE, "live": None, "reason": HOSTILE, "records": [{"text": HOSTILE}]}
    page = AttentionPage(data)
    reader = Reader(page.html)
    scripts = reader.all("script")
    assert len(scripts) == 3 and not reader.all("alert")
    assert json.loads(scripts[0][1]) == data
    frame = Reader(page._repr_html_())
    assert [tag for tag, _ in frame.elements] == ["iframe"]
    attributes = frame.elements[0][1]
    assert attributes["srcdoc"] == page.html and attributes["sandbox"] == "allow-scripts"


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 2**-11), ("int8", 0.5 / 127)])
def test_stored_weights_are_the_models(precision, tolerance):
    model = models.Transformer(17, 19, num_layers=1, d_model=8, num_heads=2, d_ff=11, output_bias=True)
    keras.utils.set_random_seed(7)
    model.set_weights([np.random.normal(size=w.shape) for w in model.weights])
    weights = named_weights(model)
    assert sum(array.size for array in weights.values()) == model.count_params()
    read = unpack_weights(*pack_weights(weights, precision))
    assert read.keys() == weights.keys()
    for name, array in weights.items():
        axis = 1 if name.endswith("embeddings") else 0  # one scale for each output channel
        reach = np.abs(array) if precision == "float16" else np.abs(array).max(axis=axis, keepdims=True)
        error = np.abs(read[name] - array)
        assert (error <= (0 if array.ndim == 1 else tolerance * reach * 1.01 + 1e-7)).all(), name


def test_size_of_a_page_is_that_of_its_weights(live, translator):
    small = attention(translator, TEXT, precision="int8")
    assert small.data["live"]["precision"] == "int8" and live.data["live"]["precision"] == "float16"
    count = translator.model.count_params()
    assert count < len(small.weights) < 1.7 * count < len(live.weights) < 2.5 * count


def quantized(tokenizer):
    translator = small_translator(tokenizer)
    translator.model.quantize("int8")
    return translator


def with_a_subclass(tokenizer):
    class Louder(layers.EncoderLayer):
        """A layer whose call the page does not know."""

    encoder = layers.Encoder([Louder(2, 11)])
    embeddings = layers.Embeddings(tokenizer.vocab_size, 8, layers.PositionalEncoding())
    model = models.EncoderDecoder(embeddings, encoder, embeddings, layers.Decoder(1, 2, 11))
    return Translator(model, tokenizer, max_length=7)


def with_encoder_layer(tokenizer, use_causal_mask=False, **options):
    heads = layers.MultiHeadAttention(2, 4, **options)
    layer = layers.EncoderLayer(d_ff=11, attention=heads, use_causal_mask=use_causal_mask)
    encoder = layers.Encoder([layer])
    embeddings = layers.Embeddings(tokenizer.vocab_size, 8, layers.PositionalEncoding())
    model = models.EncoderDecoder(embeddings, encoder, embeddings, layers.Decoder(1, 2, 11))
    return Translator(model, tokenizer, max_length=7)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (quantized, "quantized"),
        (with_a_subclass, "class Louder"),
        (lambda t: with_encoder_layer(t, positions=layers.RotaryPositions()), "has `positions`"),
        (lambda t: with_encoder_layer(t, soft_cap=3.0), "attention has `soft_cap`"),
        (lambda t: with_encoder_layer(t, use_causal_mask=True), "encoder has `use_causal_mask`"),
        (lambda t: small_translator(t, sandwich_norm=True, normalize_first=True), "sandwich_norm"),
        (lambda t: small_translator(t, activation="elu"), "activation is elu"),
        (lambda t: small_translator(t, dtype="mixed_bfloat16"), "bfloat16"),
        (lambda t: small_translator(t, Sample(seed=1)), "Sample"),
        (lambda t: small_translator(t).changed(constraints=[MinLength(2)]), "constraints"),
        (lambda t: small_translator(ByteTokenizer()), "ByteTokenizer"),
        (lambda t: small_translator(SentencePieceTokenizer(t.model, VOCABULARY)), "other ids"),
    ],
    ids=[
        "quantized", "subclass", "rotary", "capped", "causal", "sandwich", "activation", "bfloat16", "sample",
        "constraints", "bytes", "vocabulary",
    ],
)  # fmt: skip
def test_page_says_why_it_cannot_run_a_model(tokenizer, make, reason):
    with pytest.raises(CannotRunError, match=reason):
        describe_translator(make(tokenizer))


@pytest.fixture(scope="module")
def recorded(translator):
    """A recorded page of a greedy search."""
    return attention(translator, TEXT, live=False)


def test_too_large_a_page_stores_int8_and_a_larger_one_is_recorded(live, translator, monkeypatch):
    largest = "keras_transformer.plots.viewer_live.LARGEST_PAGE"
    monkeypatch.setattr(largest, len(live.weights))
    assert attention(translator, "a").data["live"]["precision"] == "int8"
    monkeypatch.setattr(largest, 1000)
    page = attention(translator, [TEXT, TEXT])
    assert not page.is_live and "MB as int8" in page.reason and page.weights == b""
    assert [record["text"] for record in page.data["records"]] == [TEXT, TEXT]


@pytest.mark.slow
def test_recorded_weights_are_those_of_the_model(translator, recorded):
    assert recorded.reason is None and not recorded.is_live
    (record,) = recorded.data["records"]
    groups = {group["name"]: group for group in record["groups"]}
    model, tokenizer = translator.model, translator.source_tokenizer
    source = [*tokenizer.tokenize([TEXT])[0].numpy(), model.eos_id]
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    written = [pieces.index(label.replace("␣", "▁")) for label in groups["cross"]["rows"]]
    assert record["translation"] == tokenizer.detokenize([written])[0].numpy().decode()
    inputs = {"source": np.array([source]), "target": np.array([[model.bos_id, *written[:-1]]])}
    logits, scores = model(inputs, return_attention_scores=True)
    assert np.array(logits)[0].argmax(axis=-1).tolist() == written
    for name, group in groups.items():
        expected = np.stack([np.array(layer)[0] for layer in scores[name]])
        np.testing.assert_allclose(weights_of(group), expected, atol=1e-3)
    assert groups["cross"]["columns"] == [pieces[i].replace("▁", "␣") for i in source]
    assert groups["decoder"]["columns"][1:] == groups["decoder"]["rows"][:-1]


def softmaxed(group):
    """Computes the weights of a group from its recorded queries and keys."""
    layers_, heads, rows, columns = (
        group["layers"], group["heads"], len(group["rows"]), len(group["columns"]),
    )  # fmt: skip
    q = floats(group["vectors"][0], layers_, rows, heads, -1)
    k = floats(group["vectors"][1], layers_, columns, heads, -1)
    scores = np.einsum("lrhd,lchd->lhrc", q, k) / np.sqrt(q.shape[-1])
    if group["name"] == "decoder":
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_recorded_vectors_give_the_weights(translator, recorded):
    (record,) = recorded.data["records"]
    for group in record["groups"]:
        np.testing.assert_allclose(softmaxed(group), weights_of(group), atol=2e-2)
        v = floats(group["vectors"][2], group["layers"], len(group["columns"]), -1)
        assert v.shape[-1] == translator.model.d_model
    assert "call" not in vars(translator.model.encoder.layers[0].self_attention), "recording has ended"


@pytest.mark.slow
def test_other_encoder_decoders_are_recorded(tokenizer):
    recurrent = models.RecurrentSeq2Seq(tokenizer.vocab_size, num_layers=2, d_model=6)
    heads = {"d_model": 6, "key_dim": 3, "d_ff": 11, "num_heads": 2}
    t5 = models.T5(tokenizer.vocab_size, num_layers=2, bos_id=2, eos_id=3, **heads)
    for model, names, count in ((recurrent, ["cross"], 1), (t5, ["encoder", "decoder", "cross"], 2)):
        page = attention(Translator(model, tokenizer, max_length=5), "a man")
        groups = page.data["records"][0]["groups"]
        assert not page.is_live and type(model).__name__ in page.reason
        assert [group["name"] for group in groups] == names
        for group in groups:
            assert (group["heads"] == count and group["vectors"] is None) or group["name"] == "cross"
            np.testing.assert_allclose(weights_of(group).sum(axis=-1), 1, atol=1e-2)


def check_tree(record):
    """Checks that the recorded tree leads to the recorded translation. Returns the nodes."""
    nodes = record["beam"]
    assert nodes[0]["parent"] == -1
    for i, node in enumerate(nodes[1:], 1):
        assert 0 <= node["parent"] < i and node["sum"] <= nodes[node["parent"]]["sum"] + 1e-6
    best = max((node for node in nodes[1:] if node["rank"] is not None), key=lambda node: node["rank"])
    assert best["sum"] == pytest.approx(record["score"], abs=1e-4)
    path = []
    while best["parent"] >= 0:
        path.append(best["label"])
        best = nodes[best["parent"]]
    assert path[::-1] == record["groups"][-1]["rows"]
    return nodes


def test_recorded_beam_is_a_tree(tokenizer):
    translator = small_translator(tokenizer, Beam(3)).changed(max_length=3)
    (record,) = attention(translator, TEXT, live=False).data["records"]
    assert len(check_tree(record)) > 6


@pytest.mark.slow
def test_recorded_beam_is_the_search(translator):
    searching = translator.changed(strategy=Beam(3))
    (record,) = attention(searching, TEXT, live=False).data["records"]
    check_tree(record)
    assert record["translation"] == searching.translate([TEXT])[0]


def test_encoder_model_is_recorded():
    tokenizer = ByteTokenizer()
    model = models.EncoderModel(
        layers.Embeddings(260, 6), layers.Encoder(2, 3, 11), head=models.ClassificationHead(5)
    )
    for servable in (Classifier(model, tokenizer, max_source_length=9), Embedder(model, tokenizer)):
        page = attention(servable, "a bear")
        (group,) = page.data["records"][0]["groups"]
        assert not page.is_live and page.reason is None
        assert group["rows"] == group["columns"] and group["rows"][0] == "<s>" and len(group["rows"]) == 8
        np.testing.assert_allclose(softmaxed(group), weights_of(group), atol=2e-2)
        np.testing.assert_allclose(weights_of(group).sum(axis=-1), 1, atol=1e-2)
    short = attention(Classifier(model, tokenizer, max_source_length=5), "a long bear")
    assert len(short.data["records"][0]["groups"][0]["rows"]) == 5


def test_vision_transformer_is_recorded_over_its_picture():
    model = models.VisionTransformer(
        (6, 4), 2, 4, layers.Encoder(1, 2, 8, normalize_first=True), num_classes=3
    )
    classifier = ImageClassifier(model, ["cat", "dog", "owl"])
    images = np.random.default_rng(3).normal(size=(2, 6, 4, 3)).astype("float32")
    page = attention(classifier, images)
    assert [record["text"] for record in page.data["records"]] == ["Image 1", "Image 2"]
    record = page.data["records"][1]
    (group,) = record["groups"]
    assert group["rows"][:3] == ["class token", "patch 1,1", "patch 1,2"] and len(group["rows"]) == 7
    image = record["image"]
    assert (image["rows"], image["columns"]) == (3, 2)
    pixels = image["pixels"]
    assert (pixels["height"], pixels["width"]) == (6, 4) and len(base64.b64decode(pixels["rgb"])) == 72
    label, probability = classifier.classify(images)[1]
    assert record["answer"] == f"{label} ({probability:.0%})"
    _, scores = model(images[1:], return_attention_scores=True)
    np.testing.assert_allclose(weights_of(group)[0], np.array(scores[0])[0], atol=1e-3)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["a", 5], {}, "`inputs` must be a str or a list of str"),
        ([], {}, "`inputs` must be a str or a list of str"),
        ("a", {"precision": "int4"}, "`precision` must be None or one of"),
        ("a", {"language": "de"}, "`language` must be one of en, ko. Received: language='de'"),
        ("", {"live": False}, "`inputs` must hold something to translate"),
    ],
)
def test_bad_argument_is_refused(translator, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        attention(translator, inputs, **options)


def test_language_model_is_refused():
    model = models.LanguageModel(
        layers.Embeddings(260, 8, layers.PositionalEncoding()), layers.Decoder(1, 2, 11)
    )
    with pytest.raises(ValueError, match="Received: a TextGenerator whose model is of class LanguageModel"):
        attention(TextGenerator(model, ByteTokenizer()), "a")


def test_command_writes_the_page(tiny_run, tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    assert main(["show", str(tiny_run), "저는", "a < b", "--output", str(page), "--beam-width", "3"]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    data = json.loads(Reader(page.read_text("utf-8")).all("script")[0][1])
    assert data["texts"] == ["저는", "a < b"] and data["live"]["config"]["search"]["width"] == 3
    assert main(["show", str(tiny_run), "저는", "--output", str(page), "--no-live"]) == 0
    assert re.search('"live": null', page.read_text("utf-8"))


def test_command_shows_an_image(tmp_path, capsys):
    model = models.VisionTransformer(4, 2, 4, layers.Encoder(1, 2, 8), num_classes=2)
    ImageClassifier(model, preprocessing=layers.ImagePreprocessing()).save(tmp_path / "model")
    picture = np.random.default_rng(3).integers(0, 256, size=(4, 4, 3), dtype="uint8")
    (tmp_path / "picture.png").write_bytes(tf.io.encode_png(picture).numpy())
    (tmp_path / "text.png").write_text("no picture")
    page = tmp_path / "page.html"
    assert main(["show", str(tmp_path / "model"), str(tmp_path / "text.png"), "--output", str(page)]) != 0
    assert "text.png must be a PNG, JPEG, BMP or GIF file" in capsys.readouterr().err and not page.exists()
    assert main(["show", str(tmp_path / "model"), str(tmp_path / "picture.png"), "--output", str(page)]) == 0
    (record,) = json.loads(Reader(page.read_text("utf-8")).all("script")[0][1])["records"]
    assert base64.b64decode(record["image"]["pixels"]["rgb"]) == picture.tobytes()


def test_command_without_a_page_writes_nothing(tiny_run, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["show", str(tmp_path / "missing"), "a", "--output", str(page)]) != 0
    assert main(["show", str(tiny_run), " ", "--no-live", "--output", str(page)]) != 0
    assert "error" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_a_short_page_hides_is_in_the_page():
    """The first page of the site shows the viewer in a frame, with `?short`: the text and the lines alone."""
    folder = resources.files("keras_transformer.plots")
    page, style, script = (
        (folder / f"viewer.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    assert 'classList.toggle("short", location.search === "?short")' in script
    hidden = re.search(r"\.short :is\((.+)\) \{ display: none; \}", style)[1]
    names = re.findall(r'[.#]([\w-]+)|\[aria-labelledby="([\w-]+)"\]', hidden)
    assert len(names) >= 6
    for kind in map("".join, names):
        assert re.search(rf'(class|id|aria-labelledby)="[^"]*\b{kind}\b', page), kind
    assert not {"ask", "answer", "lines", "step"} & {"".join(each) for each in names}
