"""What TensorBoard shows of a training, and that watching changes nothing."""

import itertools
import math
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins import projector

from keras_transformer.data import Batches
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer
from keras_transformer.training import TensorBoard, corpus_scores, tensorboard
from keras_transformer.training.attention_maps import CELL, GAP, AttentionMaps

PAIRS = [("ab", "x"), ("c", "yz.\t"), ("hat day", "wo"), ("e f", "uvwst")]
TOKENIZER = ByteTokenizer()


def small_model(optimizer="sgd", dtype="float32", num_layers=1, **compile_arguments):
    sizes = {"num_layers": num_layers, "d_model": 6, "num_heads": 3, "d_ff": 7, "dropout": 0.0}
    model = Transformer(TOKENIZER.vocab_size, TOKENIZER.vocab_size, **sizes, dtype=dtype)
    metrics = [MaskedAccuracy(), Perplexity()]
    model.compile(
        optimizer, MaskedCrossentropy(), metrics=metrics, **{"jit_compile": False, **compile_arguments}
    )
    return model


def fit(model, callback, epochs=1, initial_epoch=0, **arguments):
    batches = Batches(PAIRS, TOKENIZER, batch_tokens=12, max_length=12, num_buckets=2)
    arguments = {"steps_per_epoch": batches.steps, "shuffle": False, "verbose": 0, **arguments}
    history = model.fit(
        batches.dataset(), epochs=epochs, initial_epoch=initial_epoch, callbacks=[callback], **arguments
    )
    return batches, history.history


def written(folder):
    """What a folder's event files hold: a dict of tags to lists of (step, array)."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [(event.step, tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def steps(points):
    return [step for step, _ in points]


def values(points):
    return [float(value) for _, value in points]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Two epochs watched: the batches, what `fit` said, and where the events are."""
    folder = tmp_path_factory.mktemp("watched")
    model = small_model(keras.optimizers.Adam(WarmupSchedule(6, 3)))
    validation = Batches(PAIRS[:2], TOKENIZER, batch_tokens=12, max_length=12).dataset(epochs=1)
    batches, history = fit(model, TensorBoard(folder, update_freq=2), epochs=2, validation_data=validation)
    return types.SimpleNamespace(batches=batches, history=history, folder=folder)


@pytest.mark.slow
def test_curves_have_the_values_of_fit_by_optimizer_step(watched):
    train, validation = (written(watched.folder / run) for run in ("train", "validation"))
    n = watched.batches.steps
    assert n == 3
    for name in ("loss", "accuracy", "perplexity"):
        points = train[f"quality/{name}"]
        assert steps(points) == [2, 3, 5, 6]
        at_epoch_ends = [value for step, value in points if step % n == 0]
        np.testing.assert_allclose(at_epoch_ends, watched.history[name], rtol=1e-6)
        assert steps(validation[f"quality/{name}"]) == [n, 2 * n]
        np.testing.assert_allclose(
            values(validation[f"quality/{name}"]), watched.history[f"val_{name}"], rtol=1e-6
        )
    schedule = WarmupSchedule(6, 3)
    expected = [float(schedule(step)) for step in (2, 3, 5, 6)]
    np.testing.assert_allclose(values(train["training/learning_rate"]), expected, rtol=1e-6)


class Backwards(Translator):
    """Writes texts backwards, without a search."""

    def translate_batch(self, texts, jit_compile=None):
        return [text.decode()[::-1] for text in texts]


def watch_epochs(model, callback):
    """Calls what `fit` calls in two epochs, without training."""
    callback.set_model(model)
    callback.on_train_begin()
    for epoch in range(2):
        model.optimizer.iterations.assign(epoch + 3)
        callback.on_epoch_end(epoch, {"val_loss": 2.5 - epoch})
    callback.on_train_end()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The model, the folder and the events of the hooks of two epochs, without training."""
    folder = tmp_path_factory.mktemp("shown")
    model = small_model(num_layers=2)
    translator = Backwards(model, TOKENIZER)
    watch_epochs(
        model, TensorBoard(folder, translator=translator, val_pairs=PAIRS[:3], every=2, num_samples=2)
    )
    return types.SimpleNamespace(model=model, folder=folder, events=written(folder / "validation"))


def test_samples_scores_and_validation_are_written_by_step(shown):
    assert [(step, float(value)) for step, value in shown.events["quality/loss"]] == [(3, 2.5), (4, 1.5)]
    [(step, table)] = shown.events["translations/samples"]
    expected = [["source", "translation", "reference"]]
    expected += [[source, source[::-1], reference] for source, reference in PAIRS[:2]]
    assert step == 4 and np.char.decode(table.astype("S"), "utf-8").tolist() == expected
    sources, references = map(list, zip(*PAIRS[:3], strict=True))
    scores = corpus_scores([source[::-1] for source in sources], references)
    for name in ("bleu", "chrf"):
        assert values(shown.events[f"quality/{name}"]) == pytest.approx([scores[name]], rel=1e-6)


@pytest.mark.slow
def test_attention_is_drawn_for_each_layer_of_each_kind(shown):
    tags = [tag for tag in shown.events if "attention" in tag]
    kinds = ("encoder", "decoder", "cross")
    assert sorted(tags) == sorted(
        f"translations/{kind}_attention/layer_{layer}" for kind in kinds for layer in (1, 2)
    )
    ids = [[byte + 4 for byte in side.encode()] for side in PAIRS[0]]
    inputs = {"source": np.array([[*ids[0], 3]]), "target": np.array([[2, *ids[1]]])}
    _, scores = shown.model(inputs, return_attention_scores=True)
    labels = {
        "encoder": (["a", "b", "</s>"], ["a", "b", "</s>"]),
        "decoder": (["x", "</s>"], ["<s>", "x"]),
        "cross": (["x", "</s>"], ["a", "b", "</s>"]),
    }
    for kind in kinds:
        [(_, (_, _, png))] = shown.events[f"translations/{kind}_attention/layer_2"]
        expected = AttentionMaps(*labels[kind], num_heads=3).draw(np.asarray(scores[kind][1][0]))
        np.testing.assert_array_equal(tf.io.decode_png(png), expected)


def test_each_head_is_drawn_beside_the_one_before_it():
    maps = AttentionMaps(["a", "왜", "c"], list("vwxyz"), num_heads=2)
    blank = maps.draw(np.zeros((2, 3, 5)))
    places = {}
    for place in ((0, 0, 0), (0, 0, 4), (0, 2, 0), (1, 0, 0), (1, 2, 4)):
        weights = np.zeros((2, 3, 5))
        weights[place] = 1.0
        image = maps.draw(weights)
        assert image.dtype == np.uint8 and image.shape == blank.shape
        rows, columns = np.nonzero((image != blank).any(axis=2))
        assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (CELL, CELL) and len(rows) == CELL**2
        assert image[rows, columns].max() < 10  # a weight of 1 is black, and one of 0 nearly white
        places[place] = rows.min(), columns.min()
    top, left = places[0, 0, 0]
    assert places[0, 0, 4] == (top, left + 4 * CELL)
    assert places[0, 2, 0] == (top + 2 * CELL, left)
    assert places[1, 0, 0] == (top, left + 5 * CELL + GAP)
    assert places[1, 2, 4] == (top + 2 * CELL, left + 9 * CELL + GAP)
    labels = blank[top : top + 3 * CELL, :left], blank[top + 3 * CELL :]
    assert all((label < 100).any() for label in labels)


def test_projector_gets_embeddings_and_tokens(shown):
    config = projector.ProjectorConfig()
    folder = shown.folder / "train"
    text_format.Parse((folder / "projector_config.pbtxt").read_text(), config)
    assert [embedding.tensor_name for embedding in config.embeddings] == [
        "target_embedding",
        "source_embedding",
    ]
    for embedding in config.embeddings:
        vectors = np.loadtxt(folder / embedding.tensor_path, delimiter="\t")
        side = embedding.tensor_name.removesuffix("_embedding")
        expected = getattr(shown.model, side).tokens.embeddings
        np.testing.assert_allclose(vectors, expected, rtol=1e-4)
        tokens = (folder / embedding.metadata_path).read_text().splitlines()
        assert tokens[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"] and tokens[4 + ord("x")] == "x"
        assert len(tokens) == 260


@pytest.mark.slow
def test_speed_and_padding_are_those_of_the_batches(tmp_path, monkeypatch):
    clock = itertools.count()  # a second from look to look
    monkeypatch.setattr(tensorboard, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    batches, _ = fit(small_model(), TensorBoard(tmp_path), epochs=2)
    train = written(tmp_path / "train")
    assert values(train["training/tokens_per_second"]) == pytest.approx([batches.tokens / batches.steps] * 2)
    assert batches.padding > 0.1
    assert values(train["training/padding"]) == pytest.approx([batches.padding] * 2)


def reference_norms(model, batches, at_once=1):
    """Norms of the gradients by TensorFlow and NumPy, of the mean of `at_once` batches each."""
    found, gradients = [], []
    for bucket, indices in batches.plan(0) + batches.plan(1):
        x, y = batches.batch(bucket, indices)
        with tf.GradientTape() as tape:
            loss = MaskedCrossentropy()(y, model(x, training=True))
        variables = [variable.value for variable in model.trainable_variables]
        gradients.append([tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, variables)])
        if len(gradients) == at_once:
            means = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
            found.append(math.sqrt(sum(np.square(g, dtype="float64").sum() for g in means)))
            gradients = []
    return found


@pytest.mark.parametrize(("optimizer", "compiling", "dtype", "rtol"), [
    ({}, {}, "float32", 1e-5),
    ({}, {"run_eagerly": True}, "float32", 1e-5),
    ({}, {"jit_compile": True}, "float32", 1e-4),
    ({"global_clipnorm": 1e-3}, {}, "float32", 1e-5),
    ({"gradient_accumulation_steps": 3}, {}, "float32", 1e-5),
    ({}, {}, "mixed_float16", 2e-2),
    ({"gradient_accumulation_steps": 3, "clipnorm": 1e-3}, {}, "mixed_float16", 2e-2),
], ids=str)  # fmt: skip
@pytest.mark.slow
def test_the_norm_is_that_of_what_the_optimizer_applies_before_clipping(
    tmp_path, optimizer, compiling, dtype, rtol
):
    at_once = optimizer.get("gradient_accumulation_steps", 1)
    optimizer = keras.optimizers.SGD(0.0, **optimizer)  # the weights stay
    if dtype == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)  # overflows nowhere
    model = small_model(optimizer, dtype, **compiling)
    batches, _ = fit(model, TensorBoard(tmp_path, update_freq=at_once), epochs=2)
    assert len(batches.shapes) == 2  # two graphs
    exact = small_model()
    exact.set_weights(model.get_weights())
    points = written(tmp_path / "train")["training/gradient_norm"]
    assert steps(points) == list(range(1, 6 // at_once + 1))
    np.testing.assert_allclose(values(points), reference_norms(exact, batches, at_once), rtol=rtol)


@pytest.mark.slow
def test_a_point_shows_the_mean_norm_of_its_steps(tmp_path):
    model = small_model(keras.optimizers.SGD(0.0))
    batches, _ = fit(model, TensorBoard(tmp_path), epochs=2)
    norms = np.reshape(reference_norms(model, batches), (2, 3))
    points = written(tmp_path / "train")["training/gradient_norm"]
    np.testing.assert_allclose(values(points), norms.mean(axis=1), rtol=1e-5)


@pytest.mark.slow
def test_several_steps_in_one_call_are_counted(tmp_path):
    model = small_model(steps_per_execution=2)
    fit(model, TensorBoard(tmp_path, update_freq=4), steps_per_epoch=6)
    assert steps(written(tmp_path / "train")["training/gradient_norm"]) == [4, 6]


@pytest.mark.slow
def test_a_resumed_training_counts_on(tmp_path):
    model = small_model(keras.optimizers.Adam(1e-3))
    fit(model, TensorBoard(tmp_path / "first"))
    model.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    fit(resumed, TensorBoard(tmp_path / "second"), epochs=2, initial_epoch=1)
    assert steps(written(tmp_path / "first" / "train")["quality/loss"]) == [3]
    for points in written(tmp_path / "second" / "train").values():
        assert steps(points) == [6]


@pytest.mark.slow
def test_watching_changes_no_weight_and_leaves_no_trace(tmp_path):
    trained = []
    for callback in (keras.callbacks.Callback(), TensorBoard(tmp_path)):
        keras.utils.set_random_seed(1)
        model = small_model(keras.optimizers.Adam(1e-3, global_clipnorm=0.1))
        fit(model, callback)
        trained.append(model.get_weights())
    for one, other in zip(*trained, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "train_step" not in vars(model) and "_clip_gradients" not in vars(model.optimizer)
    assert model.train_function is None  # the next training makes its own
    before = written(tmp_path / "train")
    fit(model, keras.callbacks.Callback())
    assert model.optimizer.iterations == 6
    assert steps(written(tmp_path / "train")["quality/loss"]) == steps(before["quality/loss"]) == [3]


class Looked(TensorBoard):
    """Keeps the weights that are shown, and those that are there afterwards."""

    def _write_translations(self):
        self.shown = [self.model.get_weights()]
        super()._write_translations()

    def _write_attention(self):
        self.shown.append(self.model.get_weights())
        super()._write_attention()

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.trained = self.model.get_weights()


@pytest.mark.slow
def test_a_moving_average_is_what_is_shown_and_not_what_trains(tmp_path):
    looks = []
    for use_ema in (True, False):
        keras.utils.set_random_seed(1)
        model = small_model(keras.optimizers.SGD(0.5, use_ema=use_ema, ema_momentum=0.9))
        looks.append(Looked(tmp_path, translator=Translator(model, TOKENIZER), val_pairs=PAIRS[:2]))
        fit(model, looks[-1])
        if use_ema:
            averages = [v.numpy() for v in model.optimizer._model_variables_moving_average]
    averaged, plain = looks
    np.testing.assert_equal(averaged.shown, [averages, averages])
    np.testing.assert_equal(averaged.trained, plain.trained)
    np.testing.assert_equal(plain.shown, [plain.trained, plain.trained])
    assert not np.array_equal(averages[0], plain.trained[0])


@pytest.mark.slow
def test_a_model_trained_before_is_watched_from_then_on(tmp_path):
    model = small_model()
    fit(model, keras.callbacks.Callback())
    fit(model, TensorBoard(tmp_path))
    assert values(written(tmp_path / "train")["training/gradient_norm"])[0] > 0


@pytest.mark.slow
def test_without_matplotlib_only_the_attention_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    model = small_model()
    callback = TensorBoard(tmp_path, translator=Translator(model, TOKENIZER), val_pairs=PAIRS)
    with pytest.warns(UserWarning, match=r"no attention maps, .*`pip install matplotlib`"):
        fit(model, callback)
    assert set(written(tmp_path / "validation")) == {"quality/bleu", "quality/chrf", "translations/samples"}
    assert "training/gradient_norm" in written(tmp_path / "train")
    assert (tmp_path / "train" / "projector_config.pbtxt").exists()


def test_a_translator_alone_gives_the_projector(tmp_path):
    model = small_model()
    watch_epochs(model, TensorBoard(tmp_path, translator=Translator(model, TOKENIZER)))
    assert set(written(tmp_path / "validation")) == {"quality/loss"}
    assert (tmp_path / "train" / "projector_config.pbtxt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update_freq": 0}, "update_freq=0"),
        ({"every": -1}, "every=-1"),
        ({"val_pairs": PAIRS}, "4 pairs, translator=None"),
    ],
)
def test_arguments_are_checked(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        TensorBoard(tmp_path, **arguments)


def test_a_translator_of_another_model_is_refused(tmp_path):
    callback = TensorBoard(tmp_path, translator=Translator(small_model(), TOKENIZER))
    with pytest.raises(ValueError, match="a translator of another model"):
        watch_epochs(small_model(), callback)


@pytest.mark.slow
def test_another_backend_is_refused(tmp_path):
    pytest.importorskip("jax")
    code = f"from keras_transformer.training import TensorBoard; TensorBoard({str(tmp_path)!r})"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (
        "ValueError: `TensorBoard` needs Keras's TensorFlow backend. Received: KERAS_BACKEND=jax."
        in done.stderr
    )
