"""What `server-files` wrote before: it tells the user's changes from its own files, and remembers name and image."""

import hashlib

from keras_transformer.checks import warn
from keras_transformer.files import replaced, write_json
from keras_transformer.untrusted import read_json, read_text

# It holds the name, the image, and the SHA-256 of each written file.
WRITTEN = "server-files.json"
# Where the text goes that would replace a changed file.
NEW = ".new"


def settings_written(folder):
    """Reads the name and the image that the files in a folder were written with.

    Args:
        folder: Path of the folder.

    Returns:
        A dict of str with the keys `name` and `image`; an empty one if there are no such files.

    Raises:
        ValueError: If the folder's `server-files.json` cannot be read.
    """
    return {name: value for name, value in _written(folder).items() if name != "files"}


def write_unchanged(folder, files, always, **settings):
    """Writes files, except over those that the user changed. Warns of each changed one.

    Args:
        folder: Path of the folder.
        files: A dict from the name of a file to its text.
        always: Name of the file that is written in any case. If it was changed, the user's stays beside it.
        **settings: What `settings_written` returns from now on.

    Returns:
        List of the `Path`s of the written files.
    """
    before, paths = _written(folder).get("files", {}), []
    for name, text in files.items():
        path, other = folder / name, folder / (name + NEW)
        old = read_text(path) if path.exists() else None
        if old is None or old == text or _hash(old) == before.get(name):
            other.unlink(missing_ok=True)
        elif name == always:
            other = folder / (name + ".old")
            _write(other, old)
            warn(f"{path} was changed by hand. It is written anew, and {other} holds the changed one.")
        else:
            path = other
            warn(
                f"{folder / name} was changed by hand, and stays. {other} holds what this command would write: "
                "merge the two, or remove the first and run the command again."
            )
        _write(path, text)
        paths.append(path)
    hashes = {name: _hash(text) for name, text in files.items()}
    write_json(folder / WRITTEN, {**settings, "files": hashes})
    return paths


def _written(folder):
    path = folder / WRITTEN
    if not path.exists():
        return {}
    written = read_json(path)
    files = written.get("files")
    names = {"name", "image", "files"}
    strings = [each for name, each in written.items() if name != "files"]
    if (
        not isinstance(files, dict)
        or written.keys() != names
        or not all(isinstance(each, str) for each in strings)
    ):
        raise ValueError(f"{path} must hold {sorted(names)}: `files` an object, the others strings.")
    return written


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path, text):
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
