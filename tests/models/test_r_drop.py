"""R-Drop: two passes over a batch, whose distributions become alike."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, refuses
from keras import ops

from keras_transformer.layers import Decoder, Embeddings, PositionalEncoding
from keras_transformer.losses import MaskedCrossentropy, token_divergence
from keras_transformer.models import LanguageModel, Transformer

INPUTS = {"source": np.array([[5, 9, 7, 4], [8, 6, 0, 0]]), "target": np.array([[2, 7, 5], [2, 4, 0]])}
TARGETS = np.array([[7, 5, 3], [4, 3, 0]])


def model_of(dropout, r_drop):
    keras.utils.set_random_seed(1)
    model = Transformer(11, num_layers=1, d_model=8, num_heads=2, d_ff=16, dropout=dropout)
    model.compile("sgd", MaskedCrossentropy(), r_drop=r_drop)
    return model


def language_model_of(dropout, r_drop):
    keras.utils.set_random_seed(1)
    model = LanguageModel(
        Embeddings(11, 8, PositionalEncoding(), dropout=dropout), Decoder(1, num_heads=2, d_ff=16)
    )
    model.compile("sgd", MaskedCrossentropy(), r_drop=r_drop)
    return model


def test_the_divergence_is_the_mean_of_both_directions():
    rng = np.random.default_rng(1)
    logits, others = rng.normal(size=(2, 2, 3, 7))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, others))
    expected = ((p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1)) / 2
    assert_close(token_divergence(ops.convert_to_tensor(logits), ops.convert_to_tensor(others)), expected)


def test_the_loss_is_half_of_the_papers():
    """Two passes of known logits: `compute_loss` calls the model for the second one."""
    model = model_of(0.5, 4.0)
    rng = np.random.default_rng(2)
    first, second = (ops.convert_to_tensor(x) for x in rng.normal(size=(2, 2, 3, 11)).astype("float32"))
    model.call = lambda *args, **kwargs: second
    found = model.compute_loss(INPUTS, TARGETS, first, training=True)
    real = (TARGETS != 0).sum()
    divergence = (as_numpy(token_divergence(first, second)) * (TARGETS != 0)).sum() / real
    losses = [as_numpy(MaskedCrossentropy()(TARGETS, logits)) for logits in (first, second)]
    assert_close(found, sum(losses) / 2 + 4.0 / 2 * divergence)
    assert_close(model.compute_loss(INPUTS, TARGETS, first, training=False), losses[0])


@pytest.mark.slow
def test_without_dropout_it_changes_nothing():
    losses = [
        model_of(0.0, r_drop).fit(INPUTS, TARGETS, verbose=0, epochs=2).history["loss"]
        for r_drop in (0.0, 5.0)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("make", [model_of, language_model_of])
@pytest.mark.slow
def test_two_dropouts_cost_more_than_one(make):
    ids = INPUTS["source"]
    data = (INPUTS, TARGETS) if make is model_of else (ids[:, :-1], ids[:, 1:])
    losses = [make(0.5, r_drop).fit(*data, verbose=0).history["loss"][0] for r_drop in (0.0, 50.0)]
    assert losses[1] > losses[0] + 0.5


@pytest.mark.slow
def test_a_saved_model_goes_on_with_it(tmp_path):
    model = model_of(0.1, 3.0)
    model.fit(INPUTS, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").r_drop == 3.0


def test_a_negative_weight_is_refused():
    refuses(r"`r_drop` must be a number at least 0.*r_drop=-1", model_of, 0.1, -1)


@keras.saving.register_keras_serializable("tests")
class CountsCompilations(LanguageModel):
    compilations = 0

    def compile(self, *args, **kwargs):
        self.compilations += 1
        super().compile(*args, **kwargs)


def test_a_subclass_with_its_own_compile_is_loaded_as_it_was_compiled(tmp_path):
    model = CountsCompilations(Embeddings(11, 8), Decoder(1, num_heads=2, d_ff=16))
    model.compile("sgd", MaskedCrossentropy(), r_drop=2.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.compilations, loaded.r_drop) == (1, 2.0)
    assert isinstance(loaded.optimizer, keras.optimizers.SGD)
