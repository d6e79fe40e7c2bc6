"""The programs of docs/ports.md: with the same weights as plain Keras they compute the same."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal
from keras import layers as L

from keras_transformer import MaskedCrossentropy, layers
from keras_transformer.decoding import Beam
from keras_transformer.layers import PatchEmbedding

PAGE = Path(__file__).parents[1] / "docs" / "ports.md"


@pytest.fixture(scope="module")
def programs():
    """The functions and layers that the page defines."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(re.sub(r"(?m)^print\(.*\n", "", block), str(PAGE), "exec"), names)
    return names


def of_layer(layer):
    """The weights of a layer in the order of a plain program, which makes norms where it calls them."""
    if isinstance(layer, (layers.Encoder, layers.Decoder)):
        last = [] if layer.norm is None else layer.norm.weights
        return [weight for each in layer.layers for weight in of_layer(each)] + last
    if isinstance(layer, layers.EncoderLayer):
        attention = [layer.self_attention_residual.weights, layer.self_attention.weights]
        network = [layer.feed_forward_residual.weights, layer.feed_forward.weights]
        parts = [*attention, *network] if layer.normalize_first else [*attention[::-1], *network[::-1]]
        return [weight for part in parts for weight in part]
    return layer.weights


def weights_of(model):
    return [weight for layer in model.layers for weight in of_layer(layer)]


def check_equal(ported, plain, inputs, weights=None):
    """Gives both programs the same random weights, and compares their outputs."""
    rng = np.random.default_rng(0)
    own, others = weights or weights_of(ported), weights_of(plain)
    assert len(own) == len(others)
    for weight, other in zip(own, others, strict=True):
        value = rng.normal(size=other.shape, scale=0.2) + other.path.endswith("gamma")
        other.assign(value)
        weight.assign(
            value.reshape(weight.shape) if value.size and weight.ndim > 2 else _fitted(value, weight)
        )
    expected = as_numpy(plain(inputs))
    assert np.abs(expected).max() > 0.1
    assert_close(ported(inputs), expected)


def _fitted(value, weight):
    """A kernel that scores ids is the transpose of their table."""
    return value if value.shape == tuple(weight.shape) else value.T


def block(x, width, heads, key_dim, d_ff, *, first, epsilon=1e-6):
    """A layer of an encoder, in plain Keras."""

    def norm():
        return L.LayerNormalization(epsilon=epsilon)

    y = norm()(x) if first else x
    x = L.Add()([x, L.MultiHeadAttention(heads, key_dim)(y, y)])
    x = x if first else norm()(x)
    y = norm()(x) if first else x
    x = L.Add()([x, L.Dense(width)(L.Dense(d_ff, "gelu")(y))])
    return x if first else norm()(x)


@pytest.mark.slow
def test_recommendation(programs):
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 50, (3, 5)).astype("int32"), normal(3, 5, 1)]
    check_equal(programs["bst"](), programs["bst_before"](), inputs)


@pytest.mark.slow
def test_a_small_gpt(programs):
    model = programs["gpt"]()
    own = [*model.embeddings.weights, *of_layer(model.decoder)]
    own += [model.output_embedding.embeddings, model.output_embedding.bias]
    ids = np.random.default_rng(0).integers(4, 100, (3, 16)).astype("int32")
    check_equal(model, programs["gpt_before"](), ids, own)


@pytest.mark.slow
def test_pictures_with_convolutions(programs):
    check_equal(programs["cct"](), programs["cct_before"](), normal(3, 16, 16, 3))


@pytest.mark.slow
def test_tables(programs):
    categories, values = keras.Input((3,), dtype="int32"), keras.Input((4,))
    x = L.Embedding(15, 16)(categories + np.array([0, 5, 8], "int32"))
    for _ in range(2):
        x = block(x, 16, 4, 16, 32, first=False)
    x = L.Concatenate()([L.Flatten()(x), L.LayerNormalization(epsilon=1e-6)(values)])
    plain = keras.Model([categories, values], L.Dense(1)(L.Dense(32, "gelu")(x)))
    rows = np.array([[4, 0, 6], [1, 2, 0]], "int32")
    check_equal(programs["tab_transformer"](), plain, [rows, normal(2, 4)])


@pytest.mark.slow
def test_pictures_with_overlapping_patches(programs):
    images = keras.Input((22, 22, 3))
    x = programs["Positions"](25, 32)(L.Reshape((-1, 32))(L.Conv2D(32, 6, 4)(images)))
    for _ in range(2):
        x = block(x, 32, 4, 8, 64, first=True)
    x = L.GlobalAveragePooling1D()(L.LayerNormalization(epsilon=1e-6)(x))
    check_equal(programs["vit"](), keras.Model(images, L.Dense(10)(x)), normal(3, 22, 22, 3))


@pytest.mark.slow
def test_latents(programs):
    images = keras.Input((16, 16, 3))
    memory = programs["Positions"](64, 32)(L.Reshape((-1, 32))(L.Conv2D(32, 2, 2)(images)))
    x = latents = programs["Latents"]()(memory)
    attention, norm = L.MultiHeadAttention(1, 32), L.LayerNormalization(epsilon=1e-6)
    x = L.Add()([latents, attention(norm(latents), memory)])
    inside = keras.Input((8, 32))
    y = inside
    for _ in range(2):
        y = block(y, 32, 4, 8, 64, first=True)
    encoder = keras.Model(inside, L.LayerNormalization(epsilon=1e-6)(y))
    x = encoder(x)
    x = encoder(L.Add()([x, attention(norm(x), memory)]))
    check_equal(
        programs["perceiver"](),
        keras.Model(images, L.Dense(10)(L.GlobalAveragePooling1D()(x))),
        normal(3, 16, 16, 3),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [("captioning", (64, 64, 3)), ("speech", (40, 129))])
def test_sources_other_than_text_train_and_are_searched(programs, name, shape):
    model = programs[name]()
    source, target = normal(2, *shape), np.array([[5, 7, 9, 3], [6, 8, 3, 0]])
    shifted = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=model.bos_id)
    model.compile(keras.optimizers.Adam(1e-2), MaskedCrossentropy())
    losses = model.fit({"source": source, "target": shifted}, target, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    found = model.generate(source, Beam(4, length_penalty=0.0), max_length=4)
    assert_close(model.score(source, found.tokens).scores, found.scores, 1e-4)


def test_a_port_has_at_most_five_lines_of_own_layers_and_twenty_lines_in_all():
    text = PAGE.read_text(encoding="utf-8")
    ports = [
        match[0]
        for name in ("bst", "gpt", "cct", "tab_transformer", "vit", "perceiver")
        for match in re.finditer(rf"(?m)^def {name}\(.*\n(?:(?:    .*)?\n)*?(?=\n\n|```)", text)
    ]
    assert len(ports) == 6
    own = re.search(r"(?ms)^class Latents.*?(?=\n\n\n)", text)[0]
    assert len([line for line in own.splitlines() if line.strip()]) <= 5
    assert all(len(port.strip().splitlines()) <= 20 for port in ports)
    assert "kt.models.VisionTransformer" in text and hasattr(layers, PatchEmbedding.__name__)
