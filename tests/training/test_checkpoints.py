import keras
import numpy as np
import pytest

from keras_transformer.training import Checkpoint, EpochSeeds, latest_checkpoint


def small_model(seed=0):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def fit(model, folder, epochs, initial_epoch=0):
    x = np.arange(12.0, dtype="float32").reshape(4, 3)
    callbacks = [EpochSeeds(3), Checkpoint(folder)]
    model.fit(
        x, x[:, :2], epochs=epochs, initial_epoch=initial_epoch, batch_size=2, shuffle=False, verbose=0,
        callbacks=callbacks,
    )  # fmt: skip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_kept_and_says_how_many_epochs_are_done(tmp_path):
    folder = tmp_path / "new" / "folder"
    fit(small_model(), folder, 3)
    assert names(folder) == ["checkpoint-0003.keras"]
    assert latest_checkpoint(folder) == (folder / "checkpoint-0003.keras", 3)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    whole = small_model()
    fit(whole, tmp_path / "whole", 3)
    fit(small_model(), tmp_path / "parts", 2)
    resumed = keras.models.load_model(latest_checkpoint(tmp_path / "parts")[0])
    keras.utils.set_random_seed(99)
    assert int(resumed.optimizer.iterations) == 4
    fit(resumed, tmp_path / "parts", 3, initial_epoch=2)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_save_that_fails_leaves_the_old_checkpoint_and_nothing_else(tmp_path):
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


def test_the_old_checkpoint_stays_until_the_new_one_is_there(tmp_path):
    model = small_model()
    fit(model, tmp_path, 1)
    during = []
    save = model.save

    def watched(path, *args, **kwargs):
        save(path, *args, **kwargs)
        during.append(latest_checkpoint(tmp_path))

    model.save = watched
    callback = Checkpoint(tmp_path)
    callback.set_model(model)
    callback.on_epoch_end(1)
    assert during == [(tmp_path / "checkpoint-0001.keras", 1)]
    assert names(tmp_path) == ["checkpoint-0002.keras"]


def test_other_files_are_left_alone_and_not_taken_for_checkpoints(tmp_path):
    for name in (
        "model.keras",
        "checkpoint-best.keras",
        ".ab12-checkpoint-0009.keras",
        "checkpoint-0007.txt",
    ):
        (tmp_path / name).write_text("mine")
    assert latest_checkpoint(tmp_path) == (None, 0)
    fit(small_model(), tmp_path, 1)
    assert latest_checkpoint(tmp_path)[1] == 1
    assert len(names(tmp_path)) == 5


def test_checkpoints_are_ordered_by_number(tmp_path):
    for number in ("0002", "10000", "9999"):
        (tmp_path / f"checkpoint-{number}.keras").touch()
    assert latest_checkpoint(tmp_path)[1] == 10000


def test_no_folder_has_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path / "nowhere") == (None, 0)
