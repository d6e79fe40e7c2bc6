"""Runs commands of `keras-transformer` in this process."""

import contextlib
import io
import sys
import warnings

import pytest

from keras_transformer.cli import main


def run(*arguments, stdin=b""):
    """Runs a command and returns its exit code, standard output (bytes) and standard error (text)."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(sys, "stdin", stdin)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    out.flush()
    return code, out.buffer.getvalue(), err.getvalue()


def is_one_clean_message(err, *, named):
    """Checks that standard error holds one error, without a traceback, that names something."""
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    errors = [line for line in lines if line.startswith("keras-transformer: error: ")]
    assert len(errors) == 1, err
    assert named in err
    assert "Traceback" not in err
    return True


def assert_refused(*arguments, named, stdin=b""):
    """Runs a command that ends with exit code 2, prints nothing and names in one message what is wrong."""
    code, out, err = run(*arguments, stdin=stdin)
    assert (code, out) == (2, b""), err
    assert is_one_clean_message(err, named=named)
