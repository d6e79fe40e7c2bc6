"""The files of a checkpoint: JSON, and tensors in safetensors files, which are read and written one at a time."""

import json
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401  (NumPy has no bfloat16 before this is imported)
import numpy as np

from keras_transformer import untrusted
from keras_transformer.checks import LONGEST, check, is_usable, printable
from keras_transformer.schemas import check_schema
from keras_transformer.untrusted import is_name

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # safetensors' names
BYTES_PER_FLOAT = 4


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file.

    name: Its name in the checkpoint.
    path: The file, a `pathlib.Path`.
    shape: A tuple of int.
    dtype: safetensors' name of its dtype, a str.
    name_in_file: Its name in the file where that is another one, as in the file of an adapter; else None.
    """

    name: str
    path: Path
    shape: tuple
    dtype: str
    name_in_file: str | None = None

    def problems(self, expected_shape):
        """Returns why the tensor cannot be read or has another shape than the expected one, a list of str."""
        problems = []
        if self.shape != expected_shape:
            problems.append(f"{self.name!r:.200} has shape {self.shape}, not {expected_shape}")
        if self.dtype not in FLOAT_DTYPES:
            problems.append(f"{self.name!r:.200} is {self.dtype}, no float")
        return problems

    def read(self):
        """Reads the values, a float32 array. Raises `ValueError` if one is NaN or infinite, as `is_usable` says.

        The file is opened for each tensor, because the memory of a mapped file is freed only when it is closed.
        """
        with _open(self.path) as file:
            values = file.get_tensor(self.name_in_file or self.name).astype("float32", copy=False)
        rule = f"{self.name!r:.200} in {self.path} must hold no NaN and no infinity."
        check(is_usable(values), rule, shape=self.shape)
        return values


def read_config(folder, name=CONFIG):
    """Reads a JSON object from a checkpoint's folder, a dict: config.json, or the file of another name.

    Raises:
        ValueError: If there is no such file, or it holds no JSON object.
    """
    return read_json(Path(folder) / name)


def stored_tensors(folder):
    """Lists the tensors of a checkpoint, without their values.

    Args:
        folder: A path. The folder holds `model.safetensors`, or the files that `model.safetensors.index.json` names.

    Returns:
        List of `StoredTensor`.

    Raises:
        ValueError: If the folder holds neither, a file is missing or damaged, or two files hold the same tensor.
    """
    stored = {}
    for path in _tensor_files(Path(folder)):
        for tensor in tensors_of(path):
            if tensor.name in stored:
                raise ValueError(
                    f"{tensor.name!r} is stored twice, in {stored[tensor.name].path} and {path}."
                )
            stored[tensor.name] = tensor
    return list(stored.values())


def tensors_of(path):
    """Lists the tensors of a safetensors file, without their values: a list of `StoredTensor`."""
    tensors = []
    with _open(path) as file:
        for name in file.keys():  # noqa: SIM118  (it is no dict)
            view = file.get_slice(name)
            tensors.append(StoredTensor(name, path, tuple(view.get_shape()), view.get_dtype()))
    return tensors


def write_config(folder, config):
    """Writes config.json."""
    write_json(Path(folder) / CONFIG, config)


def write_tensors(folder, tensors, max_shard_bytes):
    """Writes tensors as float32 into `model.safetensors`, or into several files and an index if one were too large.

    Args:
        folder: Path of a folder that exists.
        tensors: List of `tensors.Tensor`.
        max_shard_bytes: Largest number of bytes of the tensors in one file. A larger tensor gets a file of its own.
    """
    folder, shards, room = Path(folder), [], 0
    for tensor in tensors:
        if _bytes(tensor) > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(tensor)
        room -= _bytes(tensor)
    if len(shards) == 1:
        write_tensor_file(folder / WEIGHTS, shards[0])
        return
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_tensor_file(folder / name, shard)
    total = sum(_bytes(tensor) for shard in shards for tensor in shard)
    file_names = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": file_names})


def _bytes(tensor):
    return BYTES_PER_FLOAT * tensor.size


def write_tensor_file(path, tensors):
    """Writes one file of safetensors: the length of the header, the header, the values as float32.

    Only one tensor is in memory at a time. safetensors' own function would need all of them at once.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        start, end = end, end + _bytes(tensor)
        header[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(np.ascontiguousarray(tensor.value(), "<f4").data)


def _tensor_files(folder):
    """Returns the paths of a checkpoint's safetensors files."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        weight_map = read_json(folder / INDEX).get("weight_map")
        names = list(weight_map.values()) if isinstance(weight_map, dict) and weight_map else [None]
        for name in names:
            if not is_name(name):
                raise ValueError(
                    f"`weight_map` must name a file of the folder for each tensor. Received: {name!r:.200} in "
                    f"{folder / INDEX}."
                )
        return [folder / name for name in sorted(set(names))]
    unsafe = sorted(path.name for path in folder.glob("*.bin"))
    if unsafe:
        raise ValueError(
            f"`folder` must hold {WEIGHTS}: weights in a .bin file are not read, because such a file can run code. "
            f"Received: {folder} with {printable(unsafe[0], LONGEST)}. "
            "If you trust the file, load it with transformers and write a new "
            "folder with `save_pretrained`."
        )
    raise ValueError(f"`folder` must hold {WEIGHTS} or {INDEX}. Received: {folder}.")


def _open(path):
    """Opens a safetensors file, for a `with` statement."""
    from safetensors import SafetensorError, safe_open

    # A pipe would wait for its writer.
    if not Path(path).is_file():
        raise ValueError(f"Cannot read {path}: it is not a file.")
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"Cannot read {path}: {error!s:.500}") from error


def read_json(path, schema=None):
    """Reads the JSON object in a file of a checkpoint, a dict, whose values are those that its schema allows.

    Args:
        path: A `pathlib.Path`.
        schema: A key of `schemas.SCHEMAS`; None for the name of the file.

    Raises:
        ValueError: If the file cannot be read, or holds another value.
    """
    value = untrusted.read_json(path)
    check_schema(value, path, schema or path.name)
    return value


def read_if_there(folder, name):
    """Reads the JSON object in a file of a folder, a dict; empty where there is no such file."""
    path = Path(folder) / name
    return read_json(path) if path.exists() else {}


def read_generation_config(folder):
    """Reads the options of transformers' `generate`, a dict, from generation_config.json, or without it config.json."""
    if (Path(folder) / GENERATION_CONFIG).is_file():
        return read_json(Path(folder) / GENERATION_CONFIG)
    config = read_if_there(folder, CONFIG)
    # The first checkpoints of BART have this key.
    if config.get("force_bos_token_to_be_generated"):
        return {**config, "forced_bos_token_id": config.get("bos_token_id")}
    return config


def write_json(path, value):
    """Writes a dict as a JSON object."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
