"""The wheel and the sdist hold what users need, and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The names of the files in the wheel and in the sdist, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    if "ModuleNotFoundError" in done.stderr or "Missing dependencies" in done.stdout + done.stderr:
        pytest.skip("setuptools 77 or newer is not installed here")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        return set(archive.namelist()), in_sdist, archive.read(metadata).decode()


def package_files():
    """The package's files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "keras_transformer"], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    return set(listed.stdout.split()) or pytest.skip("not a git checkout")


def test_the_wheel_holds_the_package_and_nothing_else(built):
    wheel, _, _ = built
    assert {name for name in wheel if ".dist-info/" not in name} == package_files()
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert any(name.endswith("entry_points.txt") for name in wheel)


def test_the_sdist_holds_the_package_its_tests_examples_and_documents(built):
    _, sdist, _ = built
    files = {
        "LICENSE", "README.md", "README.ko.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
        "CITATION.cff", "Makefile", "docs/index.md", "docs/conf.py", "docs/images/attention.png",
        "examples/demo.py", "examples/data/talk.csv", "tests/conftest.py", "benchmarks/README.md",
    }  # fmt: skip
    assert package_files() | files <= sdist
    assert not [
        name for name in sdist if "__pycache__" in name or "_build" in name or name.startswith(".venv")
    ]


def test_the_metadata_names_the_distribution_and_its_extras(built):
    _, _, metadata = built
    assert "Name: keras3-transformer\n" in metadata
    for extra in ("plots", "jax", "huggingface", "ray", "docs", "test"):
        assert f"Provides-Extra: {extra}\n" in metadata
