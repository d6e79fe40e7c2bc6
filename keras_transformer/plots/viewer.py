"""The attention viewer: one HTML page that shows what a model attends to."""

import base64
import hashlib
import html
import json
from importlib import resources
from pathlib import Path

import numpy as np

from keras_transformer.checks import check
from keras_transformer.files import replaced
from keras_transformer.models import EncoderDecoder, EncoderModel, VisionTransformer
from keras_transformer.plots.viewer_live import PRECISIONS, CannotRunError, describe_translator
from keras_transformer.plots.viewer_records import record_encoding, record_image, record_translation

SCRIPTS = ("viewer_tokenizer.js", "viewer_transformer.js", "viewer_data.js", "viewer_drawing.js", "viewer.js")
# Number of pixels of a page in a notebook.
FRAME_HEIGHT = 1000
# Each but English has a file of the page's texts.
LANGUAGES = ("en", "ko")
TITLES = {
    EncoderDecoder: "What a translator attends to",
    EncoderModel: "What an encoder attends to",
    VisionTransformer: "What a Vision Transformer attends to",
}


class AttentionPage:
    """An HTML page about the attention of a model. `attention` makes one.

    The page is one file. It needs no server and no network, and its content security policy forbids both.

    Args:
        data: A dict of plain values, which the page's script shows.
        weights: The bytes of the weights for a model that runs in the page.

    Attributes:
        data, weights: The arguments.
        html: The page, str.
        is_live: Whether the model runs in the page, so that a reader can type other texts.
        reason: Why it does not, str, or None.

    >>> page = AttentionPage({"title": "Empty", "live": None, "reason": None, "records": []})
    >>> page.html[:15]
    '<!DOCTYPE html>'
    """

    def __init__(self, data, weights=b""):
        self.data, self.weights = data, weights
        self.is_live = data["live"] is not None
        self.reason = data["reason"]
        self.html = page_of(data["title"], data, weights)

    def save(self, path):
        """Writes the page to a file, which appears whole or not at all.

        Args:
            path: Path of the file.
        """
        with replaced(Path(path)) as temporary:
            temporary.write_text(self.html, encoding="utf-8", errors="replace")

    def _repr_html_(self):
        """Shows the page in a notebook, in a frame of its own."""
        title = html.escape(self.data["title"])
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.html)}" title="{title}" '
            f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
        )


def attention(servable, inputs, *, live=True, precision=None, language="en"):
    """Makes a page that shows what a model attends to.

    The page shows every head of every layer, the step from queries and keys to a weight, and the tree of a beam search.
    A translator runs in the page: its reader types a sentence, and sees it translated and attended to. A page shows
    only the given inputs where `reason` says why the model cannot run in it: another family of models, a tokenizer
    other than SentencePiece, or weights of more than 20 MB.

    Args:
        servable: A `Translator`; or a `Classifier`, an `Embedder` or an `ImageClassifier`, whose pages are recorded.
        inputs: A str or a list of str; for an `ImageClassifier` an image or a list of images, each as `classify` takes
            it, `(height, width, channels)`.
        live: False for a page that shows the given inputs only.
        precision: How a page that runs the model stores matrices: "float16", or "int8" with a scale for each output
            channel. None for "float16", or for "int8" where that makes the page too large.
        language: Language of the page's own texts, "en" or "ko".

    Returns:
        An `AttentionPage`. A notebook shows it; `save` writes it to a file.

    Raises:
        ValueError: If the servable has another model, `inputs` holds nothing to read or is of another type, or
            `precision` or `language` is unknown.

    >>> from keras_transformer import models, serving, text
    >>> tokenizer = text.SentencePieceTokenizer.train(["a man runs", "a dog runs"] * 9, vocab_size=20)
    >>> model = models.Transformer(tokenizer.vocab_size, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    >>> page = attention(serving.Translator(model, tokenizer), "a dog runs")
    >>> page.is_live
    True
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"`precision` must be None or one of {PRECISIONS}. Received: {precision!r:.200}.")
    check(language in LANGUAGES, f"`language` must be one of {', '.join(LANGUAGES)}.", language=language)
    title = next((title for kind, title in TITLES.items() if isinstance(servable.model, kind)), None)
    if title is None:
        raise ValueError(
            "`servable` must have an encoder-decoder, an `EncoderModel` or a `VisionTransformer`. "
            f"Received: a {type(servable).__name__} whose model is of class {type(servable.model).__name__}."
        )
    words = words_of(language)
    data = {
        "title": words.get(title, title),
        "language": language,
        "words": words,
        "live": None,
        "reason": None,
        "records": [],
    }
    if isinstance(servable.model, VisionTransformer):
        data["records"] = _record_images(servable, inputs)
        return AttentionPage(data)
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"`inputs` must be a str or a list of str. Received: {inputs!r:.200}.")
    if isinstance(servable.model, EncoderModel):
        limit = servable.max_source_length
        data["records"] = [record_encoding(servable.model, servable.tokenizer, text, limit) for text in texts]
        return AttentionPage(data)
    if live:
        try:
            data["live"], weights = describe_translator(servable, precision)
            return AttentionPage({**data, "texts": list(texts)}, weights)
        except CannotRunError as error:
            data["reason"] = str(error)
    data["records"] = [record_translation(servable, text) for text in texts]
    return AttentionPage(data)


def words_of(language):
    """Returns the words of a language, a dict from each English text of the page; empty for English."""
    if language == "en":
        return {}
    return json.loads(resources.files(__package__).joinpath(f"viewer_{language}.json").read_text("utf-8"))


def page_of(title, data, weights=b"", scripts=()):
    """Writes a page: the template with its style, its scripts and its data.

    Args:
        title: Title of the page, str.
        data: A dict of plain values.
        weights: Bytes.
        scripts: Further scripts, list of str, which run after those of the viewer.

    Returns:
        The page, str.
    """
    folder = resources.files(__package__)
    style = folder.joinpath("viewer.css").read_text("utf-8")
    files = (folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    script = "\n".join(['"use strict";', *files, *scripts])
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    # As JSON inside HTML, "<" could end the script element.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "language": html.escape(data.get("language", "en")),
        "policy": policy,
        "style": style,
        "script": script,
        "data": text,
        "weights": base64.b64encode(weights).decode(),
    }
    pieces = folder.joinpath("viewer.html").read_text("utf-8").split("{{")
    page = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        page += [parts[name], rest]
    return "".join(page)


def _source(text):
    """Names an inline script or style in a content security policy, by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _record_images(servable, inputs):
    """Records the images of an `ImageClassifier`."""
    model = servable.model
    is_list = isinstance(inputs, (list, tuple)) or np.ndim(inputs) == 4
    images = [np.asarray(image) for image in (inputs if is_list else [inputs])]
    if not images:
        raise ValueError("`inputs` must hold an image. Received: none.")
    # It refuses images of another shape or dtype.
    answers = [servable.classify(image[None])[0] for image in images]
    records = []
    for i, (image, (label, probability)) in enumerate(zip(images, answers, strict=True), 1):
        prepared = image[None].astype("float32")
        if servable.preprocessing is not None:
            prepared = servable.preprocessing(image[None])
        prepared = np.asarray(prepared)[0]
        picture = image
        if image.dtype != np.uint8:
            low, high = image.min(), image.max()
            picture = np.round((image - low) / max(high - low, 1e-12) * 255).astype("uint8")
        record = record_image(model, prepared, picture, f"Image {i}")
        records.append({**record, "answer": f"{label} ({probability:.0%})"})
    return records
