"""Files and folders that appear whole or not at all."""

import contextlib
import os
import secrets
import shutil
from pathlib import Path


@contextlib.contextmanager
def replaced(path):
    """Gives a temporary path beside `path`; what is there at the end takes its place, in one rename.

    A temporary name keeps the suffixes of `path` and starts with a dot. After an error nothing is left of it, and
    what stood at `path` still stands.

    Args:
        path: The file or new folder to write. An existing folder cannot be replaced: check first.

    Yields:
        The temporary `Path`; its parent exists.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
