"""`Client.transcribe` and `Client.write`: what they send of files and bytes, and say of a refused row."""

import asyncio
import io

import numpy as np
import pytest
import tensorflow as tf
from contracts import refuses

pytest.importorskip("tensorflow_serving")
from commands import assert_refused, run
from servers import ServedModel

from keras_transformer.client import AsyncClient, Client
from keras_transformer.recordings import wav_of
from keras_transformer.serving.graph.saved_model import write_saved_model

FILES = [wav_of(np.zeros(n, "float32"), 16000) for n in (3, 5, 9)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with a transcriber's signature, which says what it got."""
    specs = [tf.TensorSpec((None,), tf.string, name=name) for name in ("wav", "language", "task")]

    @tf.function(input_signature=specs)
    def transcribe(wav, language, task):
        text = tf.strings.join([tf.strings.as_string(tf.strings.length(wav)), language, task], "|")
        error = tf.where(tf.strings.substr(wav, 0, 4) == "RIFF", "", "`wav` must be a WAV file.\x1b[2J")
        return {"text": text, "language": language, "error": error}

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="image")])
    def write(image):
        text = tf.strings.as_string(tf.strings.length(image))
        return {"text": text, "error": tf.where(image == "junk", "`image` must be a JPEG or PNG file.", "")}

    folder = tmp_path_factory.mktemp("served") / "1"
    write_saved_model(tf.Module(), {"serving_default": write, "wav": transcribe}, folder, xla=False)
    return {"hearing": {1: ServedModel(folder)}}


def test_paths_and_bytes_are_transcribed_in_their_order(url, tmp_path):
    path = tmp_path / "가.wav"
    path.write_bytes(FILES[1])
    with Client(url, "hearing", batch_size=2) as client:
        found = client.transcribe([FILES[2], path, str(path), FILES[0]], "ko", task="translate")
        assert found == [f"{len(FILES[i])}|ko|translate" for i in (2, 1, 1, 0)]
        assert client.transcribe(FILES[:1]) == [f"{len(FILES[0])}||"] and client.transcribe([]) == []

    async def ask():
        async with AsyncClient(url, "hearing") as client:
            return await client.transcribe(FILES)

    assert asyncio.run(ask()) == [f"{len(file)}||" for file in FILES]


def test_what_cannot_be_sent_or_read_is_refused(url, tmp_path):
    with Client(url, "hearing") as client:
        with pytest.raises(
            ValueError, match=r"refuses row 1 of `recordings`: `wav` must be a WAV file\.\\x1b"
        ):
            client.transcribe([FILES[0], b"junk"])
        for recordings in ("a.wav", b"RIFF", [3], None):
            refuses("`recordings` must be a list of paths or of bytes", client.transcribe, recordings)
        refuses("must be a regular file", client.transcribe, [tmp_path])
        with pytest.raises(FileNotFoundError):
            client.transcribe([tmp_path / "missing.wav"])


def test_ask_writes_a_line_for_each_file(url, tmp_path):
    """One that cannot be read, or that the server refuses, gets an empty line and a warning."""
    for name, file in (("good", FILES[0]), ("bad", b"junk")):
        (tmp_path / name).write_bytes(file)
    paths = [tmp_path / name for name in ("bad", "good", "missing")]
    stdin = "".join(f"{path}\n" for path in [*paths, ""]).encode()
    common = "ask", url, "--model", "hearing"
    code, out, err = run(*common, "--audio", "--language", "ko", "--task", "translate", stdin=stdin)
    assert (code, out.decode()) == (4, f"\n{len(FILES[0])}|ko|translate\n\n\n")
    assert "must be a WAV file" in err and err.count("missing") == 1
    assert err.splitlines()[-1].startswith("warning: Line 4 of standard input must be the path of a file.")
    code, out, _ = run(*common, "--image", stdin=stdin.splitlines()[1])
    assert (code, out.decode()) == (0, f"{len(FILES[0])}\n")
    for more, named in (
        (("--audio", "--pairs"), "Give one of"),
        (("--language", "ko"), "Give --language with --audio"),
        (("--image", "--max-length", "3"), "Give --max-length without"),
        (("--audio", "--signature", "words"), "Give --signature without"),
    ):
        assert_refused(*common, *more, stdin=stdin, named=named)


def test_other_kinds_of_recordings_are_decoded_before_they_are_sent(url):
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.zeros(9, "int16"), 16000, format="FLAC")
    with Client(url, "hearing") as client:
        expected = client.transcribe([wav_of(np.zeros(9, "int16"), 16000)])
        assert client.transcribe([file.getvalue()]) == expected


def test_pictures_are_sent_as_files(url, tmp_path):
    (tmp_path / "a.png").write_bytes(b"12345")
    with Client(url, "hearing", batch_size=2) as client:
        assert client.write([b"1", tmp_path / "a.png", b"12"]) == ["1", "5", "2"] and client.write([]) == []
        with pytest.raises(ValueError, match="refuses row 1 of `images`: `image` must be a JPEG or PNG file"):
            client.write([b"1", b"junk"])
        refuses("`images` must be a list of paths or of bytes", client.write, "a.png")
