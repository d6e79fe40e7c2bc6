"""Checkpoint folders: config.json, and tensors in safetensors files, read and written one at a time."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (NumPy has no bfloat16 before this is imported)
import numpy as np

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")


class Stored(NamedTuple):
    """A tensor in a safetensors file: its name, its file's path, its shape and the file's word for its dtype."""

    name: str
    file: Any
    shape: tuple
    dtype: str

    def problems(self, shape):
        """Why it cannot be of a shape and be read, a list of str."""
        wrong = [f"{self.name!r} has shape {self.shape}, not {shape}"] if self.shape != shape else []
        return wrong + ([] if self.dtype in FLOATS else [f"{self.name!r} is {self.dtype}, no float"])

    def read(self):
        """Its values, float32.

        The file is opened for each tensor: what has been read of a mapped file stays in memory until it is closed.
        """
        with _opened(self.file) as file:
            return file.get_tensor(self.name).astype("float32", copy=False)


def read_config(folder, name=CONFIG):
    """What a checkpoint's config.json, or another file of its folder, says, a dict.

    Raises:
        ValueError: If there is none, or it is no JSON object.
    """
    return read_object(Path(folder) / name)


def stored_tensors(folder):
    """The tensors of a checkpoint, a list of `Stored`; their values stay on the disk.

    Args:
        folder: Holds `model.safetensors`, or the files that `model.safetensors.index.json` names.

    Raises:
        ValueError: If it holds neither, a file is missing or damaged, or two hold the same tensor.
    """
    stored = {}
    for path in _files(Path(folder)):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  (it is no dict)
                if name in stored:
                    raise ValueError(f"{name!r} is stored twice, in {stored[name].file} and {path}.")
                view = file.get_slice(name)
                stored[name] = Stored(name, path, tuple(view.get_shape()), view.get_dtype())
    return list(stored.values())


def write_config(folder, config):
    """Writes config.json."""
    write_object(Path(folder) / CONFIG, config)


def write_tensors(folder, tensors, max_shard_bytes):
    """Writes tensors as float32 into `model.safetensors`; into several files and an index where one would be too large.

    Args:
        folder: An existing one.
        tensors: `Tensor`s.
        max_shard_bytes: Most bytes of tensors in a file; one that is larger gets a file of its own.
    """
    folder, shards, room = Path(folder), [], 0
    for tensor in tensors:
        if 4 * tensor.size > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(tensor)
        room -= 4 * tensor.size
    if len(shards) == 1:
        _write_shard(folder / WEIGHTS, shards[0])
        return
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard)
    total = sum(4 * tensor.size for shard in shards for tensor in shard)
    places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    write_object(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _write_shard(path, tensors):
    """One file: the header's length, the header, the values; each tensor is in memory alone.

    safetensors' own function would need all of them there at once.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        start, end = end, end + 4 * tensor.size
        header[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(np.ascontiguousarray(tensor.values(), "<f4").data)


def _files(folder):
    """The safetensors files of a checkpoint."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        places = read_object(folder / INDEX).get("weight_map")
        names = list(places.values()) if isinstance(places, dict) and places else [None]
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(
                    f"`weight_map` must name a file of the folder for each tensor. Received: {name!r} in "
                    f"{folder / INDEX}."
                )
        return [folder / name for name in sorted(set(names))]
    unsafe = sorted(path.name for path in folder.glob("*.bin"))
    if unsafe:
        raise ValueError(
            f"`folder` must hold {WEIGHTS}: weights in a .bin file are not read, as such a file can run code. "
            f"Received: {folder} with {unsafe[0]}. Where you trust it, let transformers read it and "
            "`save_pretrained` it to a new folder."
        )
    raise ValueError(f"`folder` must hold {WEIGHTS} or {INDEX}. Received: {folder}.")


def _opened(path):
    """A safetensors file, to be entered."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "Checkpoints are read with safetensors: pip install keras3-transformer[huggingface]"
        ) from error
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"Cannot read {path}: {error}") from error


def read_object(path):
    """The JSON object that a file holds, a dict; `ValueError` if there is none."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"Cannot read {path}: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: a {type(read).__name__}.")
    return read


def write_object(path, values):
    """Writes a dict as JSON."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
