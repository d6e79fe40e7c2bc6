import shutil
import urllib.request

import matplotlib.image
import numpy as np
import pytest
import show_tensorboard
import tensorflow as tf


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with tf.summary.create_file_writer(str(folder / "tensorboard" / "train")).as_default(1):
        tf.summary.scalar("loss", 2.0)
    return folder


@pytest.mark.slow
def test_tensorboard_serves_the_run_meanwhile(run):
    with show_tensorboard.serving(run / "tensorboard") as address:  # noqa: SIM117
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/scalars?run=train&tag=loss") as answer:
            assert b", 1, 2.0]" in answer.read()
    with pytest.raises(OSError):
        urllib.request.urlopen(address)


def test_folder_without_events_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(show_tensorboard, "SECONDS", 0)
    with (
        pytest.raises(RuntimeError, match=f"shows nothing of {tmp_path}"),
        show_tensorboard.serving(tmp_path),
    ):
        pass


def test_missing_browser_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(show_tensorboard, "BROWSERS", ("no-such-browser",))
    with pytest.raises(RuntimeError, match="Looked for: no-such-browser"):
        show_tensorboard.picture("about:blank", tmp_path / "page.png")


@pytest.mark.skipif(not any(map(shutil.which, show_tensorboard.BROWSERS)), reason="no browser is installed")
@pytest.mark.slow
def test_the_picture_shows_a_page_of_the_size_asked_for(run, tmp_path):
    arguments = [str(run), "--output", str(tmp_path / "page.png"), "--size", "900", "600"]
    assert show_tensorboard.main(arguments) == 0
    pixels = matplotlib.image.imread(tmp_path / "page.png")
    assert pixels.shape[:2] == (600, 900)
    orange = np.abs(pixels[10, :, :3] * 255 - (245, 124, 0)).max(axis=1) < 3
    assert orange.mean() > 0.9  # TensorBoard's own bar, at the top
