"""The doors: how files that a stranger may have written are read, and how files are opened where he may put links."""

import os

import pytest

from keras_transformer.files import SMALL, is_name, locked, read_json, read_small, read_text
from keras_transformer.serving.unfinished import Unfinished


def zeros(path):
    path.symlink_to("/dev/zero")


def pipe(path):
    os.mkfifo(path)


def large(path):
    with open(path, "wb") as file:
        file.truncate(SMALL + 1)


UNREADABLE = {"a device": zeros, "a pipe": pipe, "a folder": os.mkdir, "too large": large}
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
    with pytest.raises(ValueError, match="file must be a regular file of at most"):
        read_small(tmp_path / "file")
    with pytest.raises(ValueError, match=r"Cannot read .*file"):
        read_json(tmp_path / "file")


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "file").symlink_to("blob")
    assert read_text(tmp_path / "file") == "{}" and read_json(tmp_path / "file") == {}


@pytest.mark.parametrize(("content", "kind", "message"), VALUES)
def test_json_is_of_the_expected_kind(content, kind, message, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "file", kind)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "\ud800", "\x1b[2J", None, 3, ["a"]]
)
def test_a_name_leads_to_no_other_folder(name):
    assert (
        not is_name(name)
        and is_name("1_Pooling")
        and is_name("model-00001-of-2.safetensors")
        and is_name("é x")
    )


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


def test_no_lock_is_created_through_a_link(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"\.lock"), locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match=r"\.lock"), locked(tmp_path):
        pass


def test_a_private_folder_is_the_users_own(tmp_path, monkeypatch):
    with locked(tmp_path / "new", private=True):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with (
        pytest.raises(ValueError, match="must be a folder that you own"),
        locked(tmp_path / "new", private=True),
    ):
        pass
