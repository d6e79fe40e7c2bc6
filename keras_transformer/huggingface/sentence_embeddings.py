"""Reading of a folder of sentence-transformers: how one vector is made of the tokens' vectors."""

from pathlib import Path

from keras_transformer.huggingface.configs import POOLINGS, check_config
from keras_transformer.huggingface.files import parse_json, read_if_there, read_json

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
# The keys of older folders, one for each pooling.
POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def is_sentence_embedder(folder):
    """Whether a folder was written by sentence-transformers.

    Args:
        folder: A path.

    Returns:
        bool: whether the folder has modules.json.

    >>> is_sentence_embedder("no_such_folder")
    False
    """
    return (Path(folder) / MODULES).is_file()


def embedder_options(folder, prompt_name=None):
    """Reads how a folder of sentence-transformers makes vectors: arguments of `serving.Embedder`.

    Args:
        folder: A path. The folder holds modules.json with a transformer, a pooling ("mean" or "cls") and perhaps a
            normalisation.
        prompt_name: Name of the prompt that is put before each text, such as "query"; None for the default one.

    Returns:
        A dict of `pooling`, `normalize`, `prompt` and, where the folder says it, `max_source_length`.

    Raises:
        ValueError: If a file is missing or damaged, there is another module or pooling, or no such prompt.
    """
    folder = Path(folder)
    modules = parse_json(folder / MODULES)
    kinds = (
        [str(each.get("type")).rpartition(".")[2] for each in modules]
        if isinstance(modules, list)
        else modules
    )
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{folder / MODULES} must list a Transformer, a Pooling and perhaps a Normalize. Received: {kinds!r:.200}."
        )
    paths = [each.get("path") for each in modules]
    if paths[0] != "" or not isinstance(paths[1], str) or Path(paths[1]).name != paths[1]:
        raise ValueError(
            f"{folder / MODULES} must have its transformer in the folder itself, and its pooling in a folder in it. "
            f"Received: path={paths!r:.200}."
        )
    prompt = _prompt(folder, prompt_name)
    options = {
        "pooling": _pooling(folder / paths[1] / "config.json", prompt),
        "normalize": len(modules) == 3,
        "prompt": prompt,
    }
    if (folder / LENGTH).is_file():
        config = read_json(folder / LENGTH)
        check_config(config, LENGTH, do_lower_case=False)  # the tokenizer says what it does
        if config.get("max_seq_length") is not None:
            options["max_source_length"] = config["max_seq_length"]
    return options


def _pooling(path, prompt):
    config = read_json(path)
    modes = [config.get("pooling_mode")]
    if modes == [None]:
        modes = [
            POOLING_KEYS.get(key, key)
            for key, value in config.items()
            if key.startswith("pooling_mode") and value
        ]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(
            f"The pooling of {path} must be one of {sorted(POOLINGS)}. Received: {modes!r:.200}."
        )
    if prompt:
        check_config(config, str(path), include_prompt=True)
    return POOLINGS[modes[0]]


def _prompt(folder, name):
    config = read_if_there(folder, PROMPTS)
    prompts = config.get("prompts") or {}
    name = config.get("default_prompt_name") if name is None else name
    if name is None:
        return ""
    if name not in prompts or not isinstance(prompts[name], str):
        raise ValueError(f"`prompt_name` must be one of {sorted(prompts)}. Received: prompt_name={name!r}.")
    return prompts[name]
