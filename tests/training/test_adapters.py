"""Low-rank adapters in a Keras model of the user's own."""

import keras
import numpy as np
import pytest
from contracts import refuses

from keras_transformer.layers import Decoder, DecoderLayer, Embeddings, EncoderLayer
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import LanguageModel
from keras_transformer.training import (
    AdamW,
    Checkpoint,
    add_adapters,
    average_weights,
    checkpoints,
    load_checkpoint,
)
from keras_transformer.training.adapters import write_state


def language_model():
    return LanguageModel(Embeddings(13, 4), Decoder([DecoderLayer(2, 5)]))


def functional():
    ids = keras.Input((None,), dtype="int32")
    x = DecoderLayer(2, 5)(Embeddings(13, 4)(ids))
    return keras.Model(ids, keras.layers.Dense(13)(x))


def sequential():
    layers = keras.layers.Embedding(13, 4), EncoderLayer(2, 5), keras.layers.Dense(13)
    return keras.Sequential([keras.Input((None,), dtype="int32"), *layers])


def adapted(everywhere=True, make=language_model, **options):
    """A compiled model with adapters of rank 2; or of rank 3 on the values alone, and trained norms."""
    keras.utils.set_random_seed(3)
    model = make()
    if everywhere:
        add_adapters(model, 2, **options)
    else:
        model.decoder.layers[0].self_attention.value_dense.enable_lora(3, lora_alpha=7)
        for weight in model.trainable_weights:
            weight.trainable = "lora" in weight.name or "gamma" in weight.name
    model.compile(AdamW(0.1), MaskedCrossentropy(), run_eagerly=True)
    return model


def trained(model, folder, **epochs):
    ids = np.random.default_rng(0).integers(4, 13, (6, 8))
    model.fit(ids[:, :-1], ids[:, 1:], 3, callbacks=[Checkpoint(folder, keep=3)], verbose=0, **epochs)
    return model


@pytest.mark.slow
def test_adapters_are_all_that_is_trained_and_begin_without_effect():
    inputs = keras.Input((None, 3))
    x = EncoderLayer(2, 5)(keras.layers.Dense(4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(7)(keras.layers.LayerNormalization()(x)))
    rows = np.random.default_rng(0).normal(size=(2, 11, 3))
    before, frozen = keras.ops.convert_to_numpy(model(rows)), [weight.path for weight in model.weights]
    add_adapters(model, 2)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(rows)), before, atol=1e-6)
    trained = [weight.path for weight in model.trainable_weights]
    assert len(trained) == 2 * 8 and not set(trained) & set(frozen)


@pytest.mark.parametrize(
    ("model", "rank", "rule"),
    [
        (keras.Sequential([keras.layers.Dense(3)]), 2, "must be built"),
        (keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), 0, "rank"),
    ],
)
def test_models_and_ranks_without_adapters_are_refused(model, rank, rule):
    refuses(rule, add_adapters, model, rank)


@pytest.mark.parametrize(("everywhere", "options"), [
    (True, {}),
    (False, {}),
    (True, {"dropout": 0.3, "rank_stabilized": True}),
    (True, {"make": functional, "alpha": 5}),
    (True, {"make": sequential}),
], ids=["everywhere", "values", "dropout", "functional", "sequential"])  # fmt: skip
def test_a_training_of_adapters_resumes_as_if_it_had_never_stopped(everywhere, options, tmp_path):
    whole = trained(adapted(everywhere, **options), tmp_path / "whole", epochs=2)
    trained(adapted(everywhere, **options), tmp_path / "parts", epochs=1)
    loaded = load_checkpoint(checkpoints(tmp_path / "parts")[0].path)
    paths = [[weight.name for weight in each.trainable_weights] for each in (loaded, whole)]
    assert paths[0] == paths[1]
    resumed = trained(loaded, tmp_path / "parts", epochs=2, initial_epoch=1)
    np.testing.assert_equal(resumed.get_weights(), whole.get_weights())


def test_a_state_of_adapters_without_numbers_is_refused(tmp_path):
    """Its file holds the adapters apart from the weights that Keras saves."""
    model, path = adapted(), tmp_path / "checkpoint-0001.keras"
    model.optimizer.build(model.trainable_variables)
    model.save(path)
    model.decoder.layers[0].self_attention.value_dense.lora_kernel_a.assign(np.full((4, 2), np.nan))
    write_state(model, path)
    refuses(r"checkpoint-0001\.keras must be neither NaN nor infinite", load_checkpoint, path)


def test_a_saved_model_of_adapters_has_merged_kernels_and_no_optimizer(tmp_path):
    model = adapted()
    for weight in model.trainable_weights:
        weight.assign_add(keras.ops.ones_like(weight))
    model.save(tmp_path / "merged.keras")
    with pytest.warns(UserWarning, match=r"saved with low-rank adapters .*`compile` before `fit`"):
        merged = keras.models.load_model(tmp_path / "merged.keras")
    refuses("call `compile` before `fit`", trained, merged, tmp_path)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="must be a file of `Checkpoint`"):
        load_checkpoint(tmp_path / "merged.keras")
    ids = np.array([[5, 7, 11]])
    np.testing.assert_allclose(merged.predict(ids, verbose=0), model.predict(ids, verbose=0), atol=1e-5)
    same = average_weights([tmp_path / "merged.keras"] * 2).get_weights()
    for one, other in zip(same, merged.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_adapters_of_some_layers_have_their_alpha():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(3, name="last")])
    rows = np.random.default_rng(0).normal(size=(2, 5))
    add_adapters(model, 2, targets=[model.layers[1]], alpha=6)
    first = model.layers[0]
    assert not first.lora_enabled and len(model.trainable_weights) == 2
    before = keras.ops.convert_to_numpy(model(rows))
    low, high = (np.random.default_rng(1).normal(size=each.shape) for each in model.trainable_weights)
    for weight, value in zip(model.trainable_weights, (low, high), strict=True):
        weight.assign(value)
    expected = before + 3 * keras.ops.convert_to_numpy(first(rows)) @ low @ high
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(rows)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"targets": ["query"]}, {"targets": [3]}, {"targets": []}, {"alpha": 0}, {"alpha": float("nan")}],
)
def test_targets_and_alphas_that_do_not_fit_are_refused(options):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, name="last")])
    refuses(next(iter(options)).removesuffix("s") + ".*", add_adapters, model, 2, **options)
    assert len(model.trainable_weights) == 2


def test_dropout_and_the_root_of_the_rank_need_layers_of_this_library_or_none():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, name="last")])
    refuses(r"`dropout` is for dense layers of this library.*last", add_adapters, model, 2, dropout=0.1)
    refuses(r"`dropout` must be in \[0, 1\)", add_adapters, model, 2, dropout=1.0)
    add_adapters(model, 4, alpha=6, rank_stabilized=True)
    assert model.layers[0].lora_alpha / model.layers[0].lora_rank == pytest.approx(6 / 4**0.5)
    refuses(r"has adapters already.*rank=4", add_adapters, model, 2)


@pytest.mark.slow
def test_equal_layers_with_dropout_train_in_one_graph():
    keras.utils.set_random_seed(3)
    model = LanguageModel(Embeddings(13, 4), Decoder([DecoderLayer(2, 5, dropout=0.0) for _ in range(3)]))
    add_adapters(model, 2, dropout=0.5)
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(4).normal(size=weight.shape))
    ids = np.random.default_rng(0).integers(4, 13, (6, 8))
    model.compile("sgd", MaskedCrossentropy())
    first, second = (model.evaluate(ids[:, :-1], ids[:, 1:], verbose=0) for _ in range(2))
    assert first == second
    losses = [model.train_on_batch(ids[:, :-1], ids[:, 1:]) for _ in range(2)]
    assert np.all(np.isfinite(losses)) and losses[0] != pytest.approx(first, abs=1e-6)
