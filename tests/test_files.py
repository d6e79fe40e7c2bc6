import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from keras_transformer import files
from keras_transformer.files import LOCK, check_local, locked, remove_temporaries, replaced


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_at_the_end_and_not_before(tmp_path):
    path = tmp_path / "new" / "text.tar.gz"
    with replaced(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".") and temporary.name.endswith("text.tar.gz")
    assert path.read_text() == "new"
    assert names(path.parent) == ["text.tar.gz"]


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "text"
    path.write_text("old")
    with replaced(str(path)) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["text"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_old_file_stands_and_nothing_is_left(tmp_path, error):
    path = tmp_path / "text"
    path.write_text("old")
    with pytest.raises(error), replaced(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["text"]


def test_a_folder_appears_whole(tmp_path):
    with replaced(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("new")
    assert (tmp_path / "folder" / "part").read_text() == "new"
    assert names(tmp_path) == ["folder"]


def test_after_an_error_no_folder_is_left(tmp_path):
    with pytest.raises(RuntimeError), replaced(tmp_path / "folder") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "part").write_text("half")
        raise RuntimeError
    assert names(tmp_path) == []


def test_a_folder_that_is_there_is_never_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("old")
    with pytest.raises(OSError), replaced(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("new")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["mine"]


def test_two_writers_do_not_share_a_temporary_path(tmp_path):
    with replaced(tmp_path / "text") as one, replaced(tmp_path / "text") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "text").read_text() == "one"


def test_only_the_temporaries_of_a_killed_process_are_removed(tmp_path):
    with replaced(tmp_path / "text") as file, replaced(tmp_path / "folder") as folder:
        file.write_text("half")
        folder.mkdir()
        (folder / "part").write_text("half")
        (tmp_path / "mine").write_text("mine")
        remove_temporaries(tmp_path)
        assert names(tmp_path) == ["mine"]
        file.write_text("whole")
        folder.mkdir()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == ["folder", "mine", "text"]
    remove_temporaries(tmp_path / "nowhere")


def test_a_folder_is_locked_until_its_process_ends(tmp_path):
    folder = tmp_path / "new" / "run"
    code = (
        "import sys, keras_transformer.files as f\nwith f.locked(sys.argv[1]): print(1, flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(ValueError, match=f"in use by another process.*{folder}"), locked(folder):
            raise AssertionError("two have the folder")
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    with locked(folder):
        assert names(folder) == [LOCK]


def test_an_error_unlocks_the_folder(tmp_path):
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    with locked(tmp_path):
        pass


class NoLocks:
    LOCK_EX = LOCK_NB = 0

    @staticmethod
    def flock(file, operation):
        raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("system", [None, NoLocks])
def test_without_locks_of_the_system_a_folder_is_not_locked(tmp_path, monkeypatch, system):
    monkeypatch.setattr(files, "fcntl", system)
    with locked(tmp_path), locked(tmp_path):
        assert names(tmp_path) == [LOCK]


@pytest.mark.parametrize(
    ("code", "on_folders", "works"),
    [
        (errno.EINVAL, True, True),
        (errno.ENOTSUP, True, True),
        (errno.EINVAL, False, False),
        (errno.EIO, True, False),
    ],
)
def test_a_file_system_may_be_unable_to_wait_for_folders(tmp_path, monkeypatch, code, on_folders, works):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == on_folders:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    expected = contextlib.nullcontext() if works else pytest.raises(OSError, match=os.strerror(code))
    with expected, replaced(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("whole")
    assert works == ((tmp_path / "folder").is_dir() and names(tmp_path) == ["folder"])


def test_an_error_in_a_new_folder_names_the_final_path(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for name in (None, "model/part"):
        with pytest.raises(OSError) as raised, replaced(tmp_path / "model") as folder:
            folder.mkdir()
            if name is None:
                with replaced(folder / "part"):
                    raise full
            (folder / "none" / "part").write_text("")
        named = tmp_path / "model" / ("part" if name is None else "none/part")
        assert raised.value.filename == str(named)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named_as_the_user_named_it(tmp_path):
    (tmp_path / "file").write_text("")
    wanted = tmp_path / "file" / "run"
    for context in (replaced(wanted), locked(wanted)):
        with pytest.raises(OSError) as raised, context:
            pass
        assert raised.value.filename == str(wanted)


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://bucket/run", "file:///tmp/run"])
def test_a_url_becomes_no_local_folder(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for context in (replaced, locked):
        with pytest.raises(ValueError, match="must be on a disk of this machine"), context(url):
            pass
    assert list(tmp_path.iterdir()) == []
    check_local("C:/run"), check_local("a:b/c")
