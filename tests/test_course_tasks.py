"""The checks of the course's tasks: a right answer passes, and each usual fault is refused.

The right answers call the library or Keras, which `course/check.py` refuses in a student's file: a solution in NumPy
must not be published.
"""

import importlib
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt

COURSE = Path(__file__).parents[1] / "course"
NAMES = sorted(file.name.partition("_")[0] for file in (COURSE / "en").glob("*.py"))
FILES = {name.lstrip("0"): name for name in NAMES}
CHAPTERS = list(FILES)


@pytest.fixture(scope="module")
def check():
    """The program that students run."""
    sys.path.insert(0, str(COURSE))
    try:
        yield importlib.import_module("check")
    finally:
        sys.path.remove(str(COURSE))


def numbers(tensor):
    return keras.ops.convert_to_numpy(tensor)


def with_weights(layer, shapes, weights):
    layer.build(*shapes)
    layer.set_weights([np.reshape(w, own.shape) for w, own in zip(weights, layer.weights, strict=True)])
    return layer


def read_both_ways(x, forward, backward):
    layer = keras.layers.Bidirectional(keras.layers.SimpleRNN(5, use_bias=False, return_sequences=True))
    return numbers(with_weights(layer, [(1, *x.shape)], [*forward, *backward])(x[None]))[0]


def local_attention(s, h, places, width):
    distance = np.arange(len(h)) - places[:, None]
    arrays = (np.asarray(array, "float32")[None, None] for array in (s, h, h))
    mask = (np.abs(distance) <= width)[None, None]
    _, weights = kt.layers.dot_product_attention(*arrays, mask, scale=1.0)
    weights = numbers(weights)[0, 0] * np.exp(-2 * (distance / width) ** 2)
    return weights @ h, weights


def attention_in_parts(query, parts):
    keys, values = zip(*[(keys.copy(), values.copy()) for keys, values in parts], strict=True)
    arrays = (
        np.asarray(array, "float32") for array in (query[None], np.concatenate(keys), np.concatenate(values))
    )
    output, _ = kt.layers.dot_product_attention(*(array[None, None] for array in arrays))
    return numbers(output)[0, 0, 0]


def multi_head_attention(x, memory, w_query, w_key, w_value, w_output, num_heads):
    layer = kt.MultiHeadAttention(num_heads, x.shape[-1] // num_heads, use_bias=False)
    with_weights(layer, [(1, *x.shape), (1, *memory.shape)], [w_query, w_key, w_value, w_output])
    return numbers(layer(x[None], memory[None]))[0]


def encoder_layer(x, weights, num_heads):
    d_ff = len(weights["feed_forward/inner/bias"])
    layer = kt.EncoderLayer(num_heads, d_ff, dropout=0.0)
    return numbers(with_weights(layer, [(1, *x.shape)], weights.values())(x[None]))[0]


def adam(start, gradient, rates):
    weights = keras.Variable(start, dtype="float64")
    optimizer = keras.optimizers.Adam(0.0, beta_2=0.98, epsilon=1e-9)
    for rate in rates:
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient(numbers(weights)))], [weights])
    return numbers(weights)


def transformer(embedding, encoder, decoder, source, target, num_heads):
    d_ff = len(encoder[0]["feed_forward/inner/bias"])
    words, d_model = embedding.shape
    model = kt.Transformer(
        words, num_layers=len(encoder), d_model=d_model, num_heads=num_heads, d_ff=d_ff, dropout=0.0
    )
    batch = {"source": source[None], "target": target[None]}
    model(batch)
    weights = [embedding, *(w for layer in (*encoder, *decoder) for w in layer.values())]
    model.set_weights([np.reshape(w, own.shape) for w, own in zip(weights, model.weights, strict=True)])
    return numbers(model(batch))[0]


RIGHT = {
    "1": read_both_ways, "2": local_attention, "5": attention_in_parts, "6": multi_head_attention, "9": encoder_layer,
    "12a": adam, "16": transformer,
}  # fmt: skip
WRONG = {
    "the direction": ("1", lambda x, f, b: read_both_ways(x[::-1], f, b)),
    "no Gaussian": ("2", lambda s, h, places, width: local_attention(s, h, places, 1e6)),
    "parts counted alike": (
        "5",
        lambda query, parts: np.mean([attention_in_parts(query, [part]) for part in parts], axis=0),
    ),
    "one head": ("6", lambda *given: multi_head_attention(*given[:-1], 1)),
    "the future": (
        "7",
        lambda numbers, prompts: (numbers[:, :, None] == numbers[:, None]) & (numbers > 0)[:, None],
    ),
    "no position": ("8", lambda x, places: x),
    "one head in the layer": ("9", lambda x, weights, heads: encoder_layer(x, weights, 3 - heads)),
    "a rate behind": ("12a", lambda start, gradient, rates: adam(start, gradient, [rates[0], *rates[:-1]])),
    "no residual": ("13", lambda weights: weights.mean(axis=1)[-1]),
    "p without a threshold": (
        "14",
        lambda logits, temperature, p: numbers(keras.ops.softmax(logits / temperature)),
    ),
    "the same weights": ("15", lambda values, weights: weights),
    "one head in the model": ("16", lambda *given: transformer(*given[:-1], 3 - given[-1])),
}


def test_each_chapter_names_its_task_in_both_languages(check):
    assert list(check.TASKS) == CHAPTERS
    for chapter, task in check.TASKS.items():
        for language in ("en", "ko"):
            (file,) = (COURSE / language).glob(f"{FILES[chapter]}_*.py")
            text = file.read_text(encoding="utf-8")
            assert f"`{task.__name__}(" in text, f"{file.name} does not name {task.__name__}"
            assert f"course/check.py {chapter} answer.py`" in text, file.name


@pytest.mark.parametrize("chapter", RIGHT)
def test_a_right_answer_passes(check, chapter, capsys):
    assert check.report(check.TASKS[chapter], RIGHT[chapter]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("fault", WRONG)
def test_a_usual_fault_is_refused(check, fault, capsys):
    chapter, answer = WRONG[fault]
    assert check.report(check.TASKS[chapter], answer) == 1
    shown = capsys.readouterr()
    assert "\nno  " in f"\n{shown.out}" or "yes" in shown.out
    assert "Traceback" not in shown.err, shown.err


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_an_answer_that_returns_nothing_is_refused(check, chapter, capsys):
    assert check.report(check.TASKS[chapter], lambda *given: None) == 1
    assert "do not hold" in capsys.readouterr().out


def test_the_program_reads_a_file(check, tmp_path, capsys):
    file = tmp_path / "answer.py"
    file.write_text(
        "import numpy as np\n\n\ndef rollout(weights):\n    return weights[0, 0]\n", encoding="utf-8"
    )
    assert check.main(["13", str(file)]) == 1
    assert "no  One layer: half is the token itself." in capsys.readouterr().out
    assert check.main(["4", str(file)]) == 1
    assert "no function kernels" in capsys.readouterr().out
    file.write_text("from keras import layers\n", encoding="utf-8")
    assert check.main(["13", str(file)]) == 1
    assert "imports keras" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        check.main(["17", str(file)])
