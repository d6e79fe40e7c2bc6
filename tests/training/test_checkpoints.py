"""Checkpoints: saved, loaded, removed, averaged, and resumed from."""

import os
import signal

import keras
import numpy as np
import pytest

from keras_transformer.layers import Dropout
from keras_transformer.termination import Terminated, Termination
from keras_transformer.training import Checkpoint, Diverged, SavedState, average_weights, checkpoints


def small_model(seed=0):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), Dropout(0.5, seed=1), keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def fit(model, folder, epochs, initial_epoch=0, watch=(), **options):
    """Two steps an epoch; a resumed epoch takes those that are left."""
    x = np.arange(12.0, dtype="float32").reshape(4, 3)
    resumed = options.get("resumed")
    if resumed is not None and resumed.steps:
        x, epochs = x[2 * resumed.steps :], initial_epoch + 1
    return model.fit(
        x, x[:, :2], epochs=epochs, initial_epoch=initial_epoch, batch_size=2, shuffle=False, verbose=0,
        callbacks=[*watch, Checkpoint(folder, **options)],
    )  # fmt: skip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_the_newest_are_kept_and_say_how_many_epochs_are_done(tmp_path):
    folder = tmp_path / "new" / "folder"
    fit(small_model(), folder, 3)
    assert names(folder) == ["checkpoint-0003.keras"]
    assert checkpoints(folder) == [SavedState(folder / "checkpoint-0003.keras", 3)]
    fit(small_model(), tmp_path / "several", 5, keep=3)
    assert [saved.epochs for saved in checkpoints(tmp_path / "several")] == [5, 4, 3]


def test_failed_save_leaves_the_old_checkpoint_alone(tmp_path):
    model = small_model()
    fit(model, tmp_path, 1)
    before = (tmp_path / "checkpoint-0001.keras").read_bytes()

    def half_a_save(path, *args, **kwargs):
        path.write_bytes(b"half")
        raise OSError("disk full")

    model.save = half_a_save
    callback = Checkpoint(tmp_path)
    callback.set_model(model)
    with pytest.raises(OSError, match="disk full"):
        callback.on_epoch_end(1)
    assert names(tmp_path) == ["checkpoint-0001.keras"]
    assert (tmp_path / "checkpoint-0001.keras").read_bytes() == before


@pytest.mark.slow
def test_the_old_checkpoint_stays_until_the_new_one_is_there(tmp_path):
    model = small_model()
    fit(model, tmp_path, 1)
    during = []
    save = model.save

    def watched(path, *args, **kwargs):
        save(path, *args, **kwargs)
        during.append(checkpoints(tmp_path))

    model.save = watched
    callback = Checkpoint(tmp_path)
    callback.set_model(model)
    callback.on_epoch_end(1)
    assert during == [[SavedState(tmp_path / "checkpoint-0001.keras", 1)]]
    assert names(tmp_path) == ["checkpoint-0002.keras"]


def test_checkpoints_are_ordered_by_number_and_other_files_are_none(tmp_path):
    assert checkpoints(tmp_path / "nowhere") == []
    others = "model.keras", "checkpoint-best.keras", ".ab12-checkpoint-0009.keras", "checkpoint-0007.txt"
    for name in others:
        (tmp_path / name).write_text("mine")
    assert checkpoints(tmp_path) == []
    for number in ("0002", "10000", "9999", "9999-00000012", "9999-00000003"):
        (tmp_path / f"checkpoint-{number}.keras").touch()
    found = [(saved.epochs, saved.steps) for saved in checkpoints(tmp_path)]
    assert found == [(10000, 0), (9999, 12), (9999, 3), (9999, 0), (2, 0)]


class AtStep(keras.callbacks.Callback):
    """Does something after a step of an epoch."""

    def __init__(self, epoch, batch, action):
        super().__init__()
        self.at, self.action = (epoch, batch), action

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            self.action()


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_saves_and_training_resumes_within_the_epoch(tmp_path):
    whole = small_model()
    history = fit(whole, tmp_path / "whole", 3).history
    with Termination() as termination, pytest.raises(Terminated, match="epoch 2 after 1 steps"):
        fit(small_model(), tmp_path / "parts", 3, watch=[AtStep(1, 0, sigterm)], termination=termination)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert names(tmp_path / "parts") == ["checkpoint-0001-00000001.keras", "checkpoint-0001.keras"]

    keras.utils.set_random_seed(99)
    saved = checkpoints(tmp_path / "parts")[0]
    resumed = keras.models.load_model(saved.path)
    middle = fit(resumed, tmp_path / "parts", 3, initial_epoch=1, resumed=saved).history
    assert names(tmp_path / "parts") == ["checkpoint-0002.keras"]
    assert middle["loss"] == pytest.approx(history["loss"][1:2], rel=1e-6)  # of the whole epoch
    fit(resumed, tmp_path / "parts", 3, initial_epoch=2)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("step", "options", "where"),
    [((1, 1), {}, "epoch 2"), ((1, 0), {"every": 1}, "epoch 2, step 1"), ((1, 0), {}, "epoch 2, step 1")],
    ids=["epoch", "steps", "sigterm"],
)
def test_weights_that_are_not_finite_are_not_saved(tmp_path, step, options, where):
    model = small_model()

    def diverge():
        model.layers[-1].kernel.assign(np.full((3, 2), np.inf))
        if step == (1, 0) and not options:
            sigterm()

    with Termination() as termination, pytest.raises(Diverged) as caught:
        fit(model, tmp_path, 3, watch=[AtStep(*step, diverge)], termination=termination, **options)
    said = f"1 of 2 weights are not finite after {where}: {model.layers[-1].kernel.path}."
    assert str(caught.value).startswith(said)
    assert names(tmp_path) == ["checkpoint-0001.keras"]


@pytest.mark.slow
def test_within_an_epoch_it_saves_every_so_many_steps(tmp_path):
    seen = []
    watch = AtStep(1, 1, lambda: seen.append(names(tmp_path)))
    fit(small_model(), tmp_path, 2, every=1, keep=2, watch=[watch])
    # The callback watches before the second step's own checkpoint is there.
    assert seen == [["checkpoint-0001-00000001.keras", "checkpoint-0001.keras"]]
    assert names(tmp_path) == ["checkpoint-0001.keras", "checkpoint-0002.keras"]


def test_a_second_sigterm_is_not_held_back():
    with Termination() as termination:
        sigterm()
        assert termination.requested and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.slow
def test_average_is_the_mean_of_the_weights(tmp_path):
    fit(small_model(), tmp_path, 3, keep=3)
    paths = [saved.path for saved in checkpoints(tmp_path)]
    each = [keras.models.load_model(path).get_weights() for path in paths]
    found = average_weights(paths, keras.models.load_model).get_weights()
    for values, mean in zip(zip(*each, strict=True), found, strict=True):
        if mean.dtype == "float32":
            np.testing.assert_allclose(mean, np.mean(np.array(values, "float64"), axis=0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"at least 1\. Received: number of checkpoints=0"):
        average_weights([], keras.models.load_model)


def test_checkpoints_of_another_model_are_not_averaged(tmp_path):
    fit(small_model(), tmp_path, 1)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(
        ValueError, match=r"shapes .* must be equal\. Received: .*other\.keras, which differs from"
    ):
        average_weights([checkpoints(tmp_path)[0].path, tmp_path / "other.keras"], keras.models.load_model)
