import keras
import pytest

from keras_transformer.training import EpochSeeds


def model_with_two_dropouts():
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    return keras.Sequential(layers)


def states_of(model):
    return [tuple(v.numpy().tolist()) for v in model.non_trainable_variables if "seed" in v.path]


def states(seed, epoch):
    model = model_with_two_dropouts()
    callback = EpochSeeds(seed)
    callback.set_model(model)
    callback.on_epoch_begin(epoch)
    return states_of(model)


def test_dropout_follows_from_seed_and_epoch_alone():
    assert len(states(1, 0)) == 2
    keras.utils.set_random_seed(5)
    before = states(1, 4)
    keras.utils.set_random_seed(6)
    assert states(1, 4) == before


def test_each_epoch_each_seed_and_each_layer_draws_otherwise():
    drawn = [state for seed in (1, 2) for epoch in (0, 1, 2) for state in states(seed, epoch)]
    assert len(set(drawn)) == len(drawn) == 12


@pytest.mark.parametrize("weights", ["kernel", "bias"])
def test_weights_are_left_alone(weights):
    model = model_with_two_dropouts()
    before = getattr(model.layers[-1], weights).numpy()
    callback = EpochSeeds(1)
    callback.set_model(model)
    callback.on_epoch_begin(3)
    assert (getattr(model.layers[-1], weights).numpy() == before).all()
