"""What the tests of bulk translation share."""

import pytest


@pytest.fixture
def source(tmp_path):
    """Ten lines of different lengths."""
    path = tmp_path / "source"
    path.write_text("".join(f"{i} {'x' * (i * 7 % 10)}\n" for i in range(10)))
    return path
