"""The doors: how files that a stranger may have written are read, and how files are opened where he may put links."""

import contextlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from contracts import refuses

from keras_transformer import untrusted
from keras_transformer.checks import check
from keras_transformer.cli.answers import write_answers
from keras_transformer.cli.show import read_image
from keras_transformer.client import Client
from keras_transformer.files import locked, open_own, remove_temporaries
from keras_transformer.huggingface.chat import ChatTemplate
from keras_transformer.huggingface.tokenizers.sentence_piece_json import _scores
from keras_transformer.plots.viewer import page_of
from keras_transformer.serving.journal import Unfinished
from keras_transformer.serving.server.server_files import versions_of
from keras_transformer.text import SentencePieceTokenizer
from keras_transformer.text.added_tokens import as_added_tokens
from keras_transformer.training.adapters import holds_state, restore_state
from keras_transformer.training.checkpoints import SavedState
from keras_transformer.untrusted import (
    SMALL,
    is_name,
    open_arrays,
    read_array,
    read_entry,
    read_json,
    read_small,
    read_text,
)

UNREADABLE = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "too large": lambda path: (path.touch(), os.truncate(path, SMALL + 1)),
}
# what the file holds, what is expected, part of the message
VALUES = [
    (b"[]", dict, "must hold a JSON object. Received: a list"),
    (b"{}", list, "must hold a JSON array. Received: a dict"),
    (b"{", dict, "Cannot read .*file"),
    (b"[" * 10**5, list, "Cannot read .*file"),
    (b'"\xff"', dict, "file must hold UTF-8"),
    (b"9" * 5000, dict, "Cannot read .*file"),
]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_small_file_is_a_regular_file_of_a_bounded_size(name, tmp_path):
    UNREADABLE[name](tmp_path / "file")
    refuses("file must be a regular file of at most", read_small, tmp_path / "file")
    refuses(r"Cannot read .*file", read_json, tmp_path / "file")


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    tracemalloc.start()
    assert read_small(tmp_path / "file", 2**31) == b"content"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_path_cannot_write_to_a_terminal(tmp_path):
    folder = tmp_path / "\x1b[2J\n"
    folder.mkdir()
    (folder / "bytes").write_bytes(b"\xff")
    (folder / "list").write_bytes(b"[]")
    for name in ("missing", "bytes", "list", ""):
        with pytest.raises((ValueError, OSError), match=r"\\x1b\[2J\\n") as caught:
            read_json(folder / name)
        assert str(caught.value).isprintable()
    refuses(r"\\x1b\[2J\\n", read_entry, folder / "list", "a")


def test_a_missing_file_is_named_with_the_rule(tmp_path):
    for read in (read_json, SentencePieceTokenizer.load):
        with pytest.raises(ValueError, match="must be a file that exists") as caught:
            read(tmp_path / "file")
        assert "Errno" not in str(caught.value) and str(tmp_path / "file") in str(caught.value)


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "file").symlink_to("blob")
    assert read_text(tmp_path / "file") == "{}" and read_json(tmp_path / "file") == {}


@pytest.mark.parametrize(("content", "kind", "message"), VALUES)
def test_json_is_of_the_expected_kind(content, kind, message, tmp_path):
    (tmp_path / "file").write_bytes(content)
    refuses(message, read_json, tmp_path / "file", kind)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "\ud800", "\x1b[2J", None, 3, ["a"]]
)
def test_a_name_leads_to_no_other_folder(name):
    assert not is_name(name)
    assert all(map(is_name, ("1_Pooling", "model-00001-of-2.safetensors", "é x")))


@pytest.mark.parametrize("link", [".lock", "lines", ""])
def test_an_output_is_written_through_no_link(link, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir() if link == "" else victim.write_text("precious")
    folder = tmp_path / "out.txt.partial"
    if link:
        folder.mkdir()
    (folder / link).symlink_to(victim)
    output = Unfinished(tmp_path / "out.txt")
    with pytest.raises((OSError, ValueError), match=r"out\.txt\.partial"), output.opened({}):
        output.append(["translated"])
    assert list(victim.iterdir()) == [] if link == "" else victim.read_text() == "precious"


def enter(context):
    with context:
        pass


def test_lines_in_a_pipe_are_not_waited_for(tmp_path):
    output = Unfinished(tmp_path / "out.txt")
    with contextlib.suppress(KeyboardInterrupt), output.opened({}):
        output.append(["translated"])
        raise KeyboardInterrupt
    lines = tmp_path / "out.txt.partial" / "lines"
    lines.unlink()
    os.mkfifo(lines)
    refuses("lines must be a regular file", enter, Unfinished(tmp_path / "out.txt").opened({}))


def test_no_lock_is_created_through_a_link(tmp_path):
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo):
        make(tmp_path / ".lock")
        with pytest.raises(OSError, match=r"\.lock"):
            enter(locked(tmp_path))
        (tmp_path / ".lock").unlink()
    assert not (tmp_path / "elsewhere").exists()


def test_a_private_folder_is_the_users_own(tmp_path, monkeypatch):
    with locked(tmp_path / "new", private=True):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    for mode in (0o720, 0o702, 0o777):
        (tmp_path / "new").chmod(mode)
        refuses("only you can write into", enter, locked(tmp_path / "new", private=True))
    (tmp_path / "new").chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refuses("must be a folder that you own", enter, locked(tmp_path / "new", private=True))
    enter(locked(tmp_path / "on a disk that sets the owner", private=True))


def test_a_file_with_another_name_is_not_appended_to(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lines").hardlink_to(tmp_path / "victim")
    refuses("lines must be a regular file with no other name", open_own, tmp_path / "lines")
    open_own(tmp_path / "new").close()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_the_escapes_of_an_answer_and_a_file_gets_each_byte(terminal, monkeypatch):
    out, text = io.TextIOWrapper(io.BytesIO()), "a\x1b[2J\tb \x9b می\u200cخ\n"
    monkeypatch.setattr(out, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    write_answers(text)
    shown = text.replace("\x1b", r"\x1b").replace("\x9b", r"\x9b") if terminal else text
    assert out.buffer.getvalue().decode() == shown


def test_a_large_entry_of_an_archive_is_read_without_compression(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "SMALL", 10**5)
    path, inner = tmp_path / "file", io.BytesIO()
    np.savez_compressed(inner, a=np.zeros(10**6))
    arrays = io.BytesIO()
    np.savez(arrays, a=np.arange(3))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bomb", bytes(10**6), zipfile.ZIP_DEFLATED)
        archive.writestr("text", b"text", zipfile.ZIP_DEFLATED)
        archive.writestr("compressed", inner.getvalue())
        archive.writestr("arrays", arrays.getvalue())
    assert read_entry(path, "text") == b"text" and list(open_arrays(path, "arrays")["a"]) == [0, 1, 2]
    for name in ("bomb", "missing"):
        refuses(f"{name}, without compression or of at most 100000 bytes", read_entry, path, name)
    for name in ("text", "compressed"):
        refuses(f"{name} of .*file must be an archive of NumPy, whose arrays", open_arrays, path, name)


@pytest.mark.parametrize("damage", ["not an array", "a header without end", "another checksum"])
def test_a_damaged_array_is_refused_with_its_file(damage, tmp_path):
    arrays, path = io.BytesIO(), tmp_path / "file"
    with zipfile.ZipFile(arrays, "w") as archive:
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 9000
        archive.writestr("a.npy", header if damage == "a header without end" else b"abc")
    content = arrays.getvalue()
    if damage == "another checksum":
        content = content.replace(b"abc", b"abd")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arrays", content)
    with open_arrays(path, "arrays") as values, pytest.raises(ValueError, match=r"file must hold .*'a'"):
        read_array(values, "a", path)


def test_an_archive_of_a_later_version_is_refused_or_is_none(tmp_path):
    arrays, path = io.BytesIO(), tmp_path / "file"
    np.savez(arrays, a=np.arange(3))
    content = bytearray(arrays.getvalue())
    # The version that is needed to read an entry, in the directory at the end.
    content[content.rindex(b"PK\x01\x02") + 6] = 255
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arrays", bytes(content))
    refuses(r"arrays of .*file must be an archive of NumPy", open_arrays, path, "arrays")
    path.write_bytes(content)
    assert holds_state(path) is False
    refuses(r"must hold a\.npy.*version 25\.5", read_entry, path, "a.npy")


def test_an_archive_of_more_than_two_gigabytes_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    test_a_large_entry_of_an_archive_is_read_without_compression(tmp_path, monkeypatch)


def test_a_received_value_may_have_any_name():
    refuses(r"^a\. Received: rule=1, holds=2\.$", check, False, "a.", **{"rule": 1, "holds": 2})


def test_a_link_that_looks_temporary_is_removed_and_its_folder_is_not(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / ".tmp-00000000-a").symlink_to("folder")
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_a_version_that_no_int64_holds_is_none(tmp_path):
    for name in ("3", "9" * 20):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    assert versions_of(tmp_path) == {3}


@pytest.mark.parametrize(
    ("model", "label", "rule"),
    [
        ("\ud800", None, "`model` must be the name of a model"),
        ("a\n", None, "`model` must be the name of a model"),
        ("a", "\ud800", "`label` must be a str"),
    ],
)
def test_a_name_that_no_address_can_hold_is_refused(model, label, rule):
    refuses(rule, Client, "http://localhost:1", model, label=label)


def test_an_image_of_many_pixels_is_refused_before_it_is_read(tmp_path):
    header = struct.pack(">II5B", 20_000, 20_000, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    refuses(r"image\.png must have at most 67108864 pixels", read_image, tmp_path / "image.png", 3)
    tf.io.write_file(str(tmp_path / "small.png"), tf.io.encode_png(np.zeros((5, 7, 3), "uint8")))
    assert read_image(tmp_path / "small.png", 3).shape == (5, 7, 3)


@pytest.mark.parametrize(
    "content", [b"RIFF\x24\0\0\0WEBPVP8L", b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n", b""]
)
def test_an_image_whose_size_is_not_checked_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.setattr(tf.io, "decode_image", lambda *_, **__: pytest.fail("it was decoded"))
    (tmp_path / "image").write_bytes(content)
    refuses("image must be a PNG, JPEG, BMP or GIF file", read_image, tmp_path / "image", 3)


def test_the_language_of_a_page_cannot_leave_its_attribute(tmp_path):
    page = page_of("a", {"language": 'en"><script>alert(1)</script>'})
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


class Compared(str):
    """A text that counts its comparisons with others as lines of Python."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return str.__eq__(self, other)


def lines_run(function):
    """Returns how many lines of Python a call runs, those of comprehensions and generators once a turn."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def read_merges(size):
    run = "a" * 200
    merges = [[run[:i], "a"] for i in range(199, 0, -1)]
    merges += [[chr(i), chr(i)] for i in range(1000, 1000 + size)]
    with contextlib.suppress(ValueError):
        _scores(merges, {})


def read_tokens(size):
    assert len(as_added_tokens([Compared(i) for i in range(size)])) == size


@pytest.mark.parametrize("read", [read_merges, read_tokens])
def test_four_times_the_tokens_are_at_most_five_times_the_work(read):
    read(10)
    assert lines_run(lambda: read(1600)) <= 5 * lines_run(lambda: read(400))
    refuses("at most 256 characters", _scores, [["a", "a" * 10**6]], {})


GREEDY = [
    "{{ lipsum(n=10**6) }}",
    "{{ '%9000000000s' % 1 }}",
    "{{ 'a'.center(9000000000) }}",
    "{{ 'a'|center(10**10) }}",
    "{{ '{:9000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 9000000000) }}",
    "{{ '{a:9000000000}'.format_map({'a': 1}) }}",
    "{% set f = '{:9000000000}'.format %}{{ f(1) }}",
    "{{ '{:9000000000}'|attr('format')(1) }}",
    "{{ '%9000000000d'|format(1) }}",
    "{{ '%.9000000000f'|format(1) }}",
    "{{ '%*d' % (9000000000, 1) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ [1]|batch(10**9, 0)|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ 1.5|round(10**9, 'ceil') }}",
    "{{ (1).to_bytes(10**10, 'little') }}",
]


@pytest.mark.parametrize("source", GREEDY)
def test_a_template_cannot_ask_for_gigabytes_in_one_word(source):
    pytest.importorskip("jinja2")
    refuses("chat template", lambda: ChatTemplate(source).render([]))
    assert ChatTemplate("{{ 5 % 3 }}{{ 'a\nb'|indent(2) }}").render([]) == "2a\n  b"


FORMATS = {
    "{{ '%s is %5.1f' % ('a', 2) }}": "a is   2.0",
    "{{ '%(a)s'|format(a=1) }}{{ '%02d'|format(3) }}": "103",
    "{{ '{:>3}{}'.format(1, 'b') }}": "  1b",
    "{{ [1, 2, 3]|batch(2, 0)|list }}": "[[1, 2], [3, 0]]",
    "{{ [1, 2]|tojson(indent=1) }}{{ 2.345|round(2) }}": "[\n 1,\n 2\n]2.35",
}


@pytest.mark.parametrize("source", FORMATS)
def test_a_template_may_format(source):
    pytest.importorskip("jinja2")
    assert ChatTemplate(source).render([]) == FORMATS[source].replace("2.35", str(round(2.345, 2)))


def write_adapters(folder, **arrays):
    """Writes a `.keras` file with the state of adapters, and returns its path."""
    path, state = folder / "a.keras", io.BytesIO()
    np.savez(state, **arrays)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps({"compile_config": {"optimizer": "sgd", "loss": "mse"}}))
        archive.writestr("adapters.npz", state.getvalue())
    return path


# Ranks, alphas and which layers are trained.
ARRAYS = [
    (), (2,), ([2],), ([10**9], [1.0]), ([200], [1.0]), ([-1], [1.0]), ([2], [np.inf]), ([2], [1.0]), ([1.5], [1.0]),
    (["2"], [1.0]), ([2], ["2"]), ([True], [1.0]), ([2], [1.0], [True] * 3), ([2], [1.0], [True] * 4),
]  # fmt: skip


@pytest.mark.parametrize("arrays", ARRAYS)
def test_adapters_without_their_arrays_or_dense_layers_are_refused(arrays, tmp_path):
    named = zip(("ranks", "alphas", "trainable"), map(np.array, arrays), strict=False)
    path = write_adapters(tmp_path, **dict(named))
    for layer in (keras.layers.Dense(2), keras.layers.ReLU()):
        model = keras.Sequential([keras.Input((3,)), layer])
        refuses(r"a\.keras must (hold|say of each)", restore_state, model, path)
    refuses(r"a\.keras must hold metrics\.npz", SavedState(path, 1, 1).restore_metrics, model)


@pytest.mark.slow
def test_changes_at_random_end_in_answers_or_refusals():
    script = pathlib.Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
    done = subprocess.run(
        [sys.executable, script, "--seconds", "60"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and " 0 faults" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
