"""Pictures and recordings of strangers, in the runtime of the server: it lives, and neighbours get their answers."""

import pathlib
import random
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from batching import COMPILER, BatchingServer
from hearing import RATE, sound, transcriber

from keras_transformer.layers import Encoder, ImagePreprocessing
from keras_transformer.models import VisionTransformer
from keras_transformer.recordings import wav_of
from keras_transformer.serving import ImageClassifier
from keras_transformer.serving.server.server_files import write_server_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++, to build the batching server"),
]
SIDE = 8192  # of the largest picture that is decoded
GIB = 2**30
# Of the process in GiB, above that of the answers before. A picture takes 64 MiB, and 256 MiB as float32.
MEMORY = 2
CALLERS = 8


def png(width, height, content):
    """A picture of shades of grey, whose header may not fit its content."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", content),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def changed(content, number):
    """A file with other bytes in a few places."""
    draw, content = random.Random(number), bytearray(content)
    for _ in range(draw.choice((1, 3, 30))):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def pictures():
    """Files of strangers, and the number of those that are pictures, at the end."""
    small = png(4, 6, zlib.compress(bytes(6 * 5)))
    jpeg = tf.io.encode_jpeg(np.zeros((9, 7, 1), "uint8")).numpy()
    wide = jpeg.replace(b"\xff\xc0\x00\x0b\x08\x00\x09\x00\x07", b"\xff\xc0\x00\x0b\x08\xff\xff\xff\xff")
    assert wide != jpeg
    zeros = zlib.compress(bytes(SIDE * (SIDE + 1) + SIDE + 1), 9)
    bad = [b"", b"no picture", b"\xff" * 10**7, small[:-30], jpeg[:40], b"GIF89a" + small, wide]
    bad += [small[:33], png(SIDE + 1, SIDE, zeros), png(2**31 - 1, 2**31 - 1, zeros), png(0, 5, zeros)]
    return bad + [png(SIDE, SIDE, zeros)] * 8


def recordings():
    """Files of strangers that are no recordings, or endless ones."""
    whole = wav_of(sound(0.3), RATE)
    bad = [b"", b"junk", b"RIFF" * 10**6, b"\0" * 10**7, whole[:20], whole[:44], whole[:-1]]
    bad += [whole.replace(b"data", b"data\xff\xff\xff\xff", 1), whole[:4] + b"\xff" * 4 + whole[8:]]
    bad += [wav_of(np.full(9000, value, "float32"), RATE) for value in (np.nan, np.inf, -np.inf, 3e38)]
    # A header that promises ten hours, a file that has them, 100 channels, and a format of another kind.
    size = whole.index(b"data") + 4
    bad += [whole[:size] + struct.pack("<I", 36000 * RATE * 4) + whole[size + 4 :]]
    bad += [wav_of(np.zeros(36000 * 1000, "int16"), 1000), wav_of(np.zeros((90, 100), "int16"), RATE)]
    return [*bad, b"fLaC" + bytes(10**6)]


def peak_of(server):
    """The largest memory of the server so far, in bytes."""
    lines = pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def ask_beside(server, signature, name, hostile, good, **others):
    """Sends files of strangers, one by one and all together, beside files whose answers are known.

    Returns:
        The answers to the hostile files, a list of dicts.
    """

    def ask(files):
        options = {key: [value] * len(files) for key, value in others.items()}
        return server.predict(signature, **{name: np.array(files, object)}, **options)

    expected = {content: ask([content]) for content in good}
    before, answers = peak_of(server), []

    def call(number):
        if number % 2:
            content = good[number // 2 % len(good)]
            found = ask([content])
            for key, value in expected[content].items():
                if value.dtype.kind == "f":
                    np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)
                else:
                    assert found[key].tolist() == value.tolist(), key
        else:
            files = [hostile[number // 2]] if number // 2 < len(hostile) else hostile
            found = ask(files)
            answers.extend({key: value[row] for key, value in found.items()} for row in range(len(files)))

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call, range(2 * len(hostile) + 2)))
    assert (peak_of(server) - before) / GIB < MEMORY
    assert server.close() == 0
    return answers


def test_pictures_of_strangers_end_no_server_and_fill_no_memory(program, tmp_path):
    encoder = Encoder(1, 2, 16, dropout=0.0, normalize_first=True)
    model = VisionTransformer((6, 4), 2, 8, encoder, 3, channels=1)
    classifier = ImageClassifier(model, ["a", "b", "c"], ImagePreprocessing((6, 4), 0.4, 0.2))
    export = classifier.export(tmp_path / "model", batch_sizes=[1, 32], check=False)
    write_server_files(tmp_path / "model")
    good = [tf.io.encode_png(np.full((9, 7, 1), shade, "uint8")).numpy() for shade in (0, 90, 255)]
    hostile = pictures()
    hostile += [changed(good[1], number) for number in range(20)]
    config = (tmp_path / "model" / "batching.config").read_text()
    with BatchingServer(program, export, config) as server:
        answers = ask_beside(server, "encoded", "image", hostile, good)
    refused = [answer["error"] != b"" for answer in answers]
    assert all((answer["label"] == b"") == error for answer, error in zip(answers, refused, strict=True))
    assert sum(refused) >= 2 * 11


def test_recordings_of_strangers_end_no_server(program, tmp_path):
    export = transcriber().export(tmp_path / "model", check=False)
    write_server_files(tmp_path / "model")
    good = [wav_of(sound(0.3, seed), RATE) for seed in range(3)]
    hostile = recordings()
    hostile += [changed(good[1][:200], number) for number in range(20)]
    config = (tmp_path / "model" / "batching.config").read_text()
    with BatchingServer(program, export, config) as server:
        answers = ask_beside(server, "wav", "wav", hostile, good, language="", task="")
    errors = [answer["error"] for answer in answers]
    assert sum(error != b"" for error in errors) >= 2 * 12
    assert all(answer["text"] == b"" for answer, error in zip(answers, errors, strict=True) if error)
