"""Folders of sentence-transformers, read and written: how one vector is made of the tokens' vectors."""

import logging
from pathlib import Path

from keras_transformer.checks import check, short_errors
from keras_transformer.huggingface.configs import POOLINGS as CLASSIFIER_POOLINGS
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import CONFIG, read_if_there, read_json, stored_tensors
from keras_transformer.huggingface.known_keys import check_sentence_file
from keras_transformer.huggingface.tensors import dense, fill_weights
from keras_transformer.huggingface.tokenizers.word_piece import lowers_case
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models.heads import PROJECTED, MaskedLanguageHead, ProjectedPooler
from keras_transformer.schemas import check_schema
from keras_transformer.untrusted import read_json as read_list

log = logging.getLogger(__name__)

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
POOLINGS = {**CLASSIFIER_POOLINGS, "lasttoken": "last", "max": "max"}
# The keys of older folders, one for each pooling.
POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
}
# Keys of sentence_bert_config.json that must have one value.
LENGTH_FIXED = {
    **{"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"},
    **{key: {} for key in ("model_args", "tokenizer_args", "config_args", "processing_kwargs")},
}
# Dense modules by the ends of the names of PyTorch's activations.
ACTIVATIONS = {
    "Identity": "linear",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


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


def module_names(folder):
    """Returns the names of the files and folders in a folder that say how it makes vectors, a set of str.

    Args:
        folder: A `pathlib.Path`.
    """
    if not is_sentence_embedder(folder):
        return set()
    paths = [each["path"] for each in read_list(folder / MODULES, list)]
    return {MODULES, PROMPTS, LENGTH, *(path.partition("/")[0] for path in paths if path)}


def warn_of_activation(config):
    """Warns where a cross-encoder's score is not the logit, but config.json or its default names another activation.

    Args:
        config: The config.json, a dict.
    """
    # This key counts before that of older versions.
    newer = config.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is not None and str(name).rpartition(".")[2] != "Identity":
        log.warning("config.json names the activation %s, which is not computed: a score is the logit", name)
    scores = len(config.get("id2label") or ()) == 1 or config.get("num_labels") == 1
    if name is None and scores and "ForSequenceClassification" in str(config.get("architectures")):
        log.warning(
            "config.json names no activation, which means a sigmoid in sentence-transformers: here a score is the logit"
        )


@short_errors()
def embedder_options(folder, prompt_name=None):
    """Reads how a folder of sentence-transformers makes vectors: arguments of `serving.Embedder`.

    Args:
        folder: A path. The folder holds modules.json with a transformer, a pooling ("mean", "max", "cls" or
            "lasttoken"), perhaps dense layers, and perhaps a normalisation.
        prompt_name: Name of the prompt that is put before each text, such as "query"; None for the default one.

    Returns:
        A dict of `pooling`, `normalize`, `prompt` and, where the folder says it, `max_source_length`. With dense layers
        `pooling` is "projected": `with_dense_modules` gives the model these layers.

    Raises:
        ValueError: If a file is missing or damaged, there is another module or pooling, or no such prompt.
    """
    folder = Path(folder)
    pooling, denses, normalize = _modules(folder)
    prompt = _prompt(folder, prompt_name)
    own_pooling = _pooling(pooling / "config.json", prompt)
    options = {"pooling": PROJECTED if denses else own_pooling, "normalize": normalize, "prompt": prompt}
    if (folder / LENGTH).is_file():
        config = read_json(folder / LENGTH)
        if not lowers_case(folder):
            check_config(config, LENGTH, do_lower_case=False)
        check_config(config, LENGTH, **LENGTH_FIXED)
        check_sentence_file(config, LENGTH)
        if config.get("max_seq_length") is not None:
            options["max_source_length"] = config["max_seq_length"]
    return options


@short_errors()
def with_dense_modules(model, folder):
    """Returns a model without its head, with the dense layers of a folder of sentence-transformers as its pooler.

    Args:
        model: An `EncoderModel` that `from_huggingface` made of the folder. Where it is quantized, so are these layers.
        folder: A path. The folder holds modules.json.

    Returns:
        An `EncoderModel`; `model` itself where it has no head and the folder no dense layers.

    Raises:
        ValueError: If a file is missing or damaged, or there is another module, activation or tensor.
    """
    folder = Path(folder)
    pooling, denses, _ = _modules(folder)
    if not denses:
        return model if model.head is None else model.with_head(None)
    configs = [_dense_config(path / "config.json") for path in denses]
    stored = [stored_tensors(path) for path in denses]
    for config, path, tensors in zip(configs, denses, stored, strict=True):
        sizes = {each.shape[0] for each in tensors if each.name == "linear.weight" and each.shape}
        rule = f"`out_features` of {path / 'config.json'} must be the size of the stored tensor."
        check(sizes == {config["out_features"]}, rule, out_features=config["out_features"], stored=sizes)
    pooler = ProjectedPooler(
        [config["out_features"] for config in configs],
        [_activation(config, path) for config, path in zip(configs, denses, strict=True)],
        [bool(config.get("bias", True)) for config in configs],
        _pooling(pooling / "config.json", None),
        dtype=model.dtype_policy,
        name="pooler",
    )
    model = model.with_head(None, pooler)
    quantized = model.embeddings.tokens.quantization_mode
    for layer, tensors in zip(pooler.layers, stored, strict=True):
        fill_weights(dense("linear", layer), tensors)
        if quantized:
            layer.quantize(quantized, config=model.embeddings.tokens.quantization_config)
    return model


def embedder_files(model, pooling="mean", normalize=True, prompt="", max_source_length=None):
    """Describes how an embedder makes vectors, as sentence-transformers does: `files` of `to_huggingface`.

    It undoes `embedder_options`. Prompts that `model` was read with are kept beside the given one.

    Args:
        model: The `EncoderModel` of the embedder.
        pooling: As in `serving.Embedder`.
        normalize: As in `serving.Embedder`.
        prompt: As in `serving.Embedder`; it becomes the default prompt.
        max_source_length: As in `serving.Embedder`; None to leave it to sentence-transformers.

    Returns:
        A dict from a file's path in the folder to its content, plain data.

    Raises:
        ValueError: If the model has no such pooling, or a dense layer has an activation without a name.

    >>> from keras_transformer.layers import Embeddings, Encoder
    >>> from keras_transformer.models import EncoderModel
    >>> files = embedder_files(EncoderModel(Embeddings(11, 4), Encoder(1, 2, 8)), max_source_length=32)
    >>> files["sentence_bert_config.json"]["max_seq_length"], files["1_Pooling/config.json"]["pooling_mode_mean_tokens"]
    (32, True)
    """
    model.vector_width(pooling)
    denses = model.pooler if pooling == PROJECTED else None
    dense_layers, units = (denses.layers, denses.units) if denses else ([], ())
    mode = {own: name for name, own in POOLINGS.items()}[pooling if denses is None else denses.pooling]
    kinds = ["Transformer", "Pooling", *["Dense"] * len(units), *["Normalize"] * normalize]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    widths = [model.d_model, *units]
    configs = [
        {"word_embedding_dimension": widths[0], **{key: name == mode for key, name in POOLING_KEYS.items()}}
    ]
    for i, layer in enumerate(dense_layers):
        names = {get_activation(own): name for name, own in ACTIVATIONS.items()}
        rule = f"`activations` must be of {sorted(ACTIVATIONS.values())}."
        check(layer.activation in names, rule, activations=layer.activation)
        sizes = {"in_features": widths[i], "out_features": widths[i + 1], "bias": layer.use_bias}
        configs.append({**sizes, "activation_function": f"torch.nn.{names[layer.activation]}"})
    prompts = dict(model.checkpoint_files.get(PROMPTS, {}))
    named = dict(prompts.get("prompts") or {})
    default = prompts.get("default_prompt_name")
    if prompt != (named.get(default) or ""):
        default = (
            next((name for name, text in named.items() if text == prompt), "default") if prompt else None
        )
        named |= {default: prompt} if prompt else {}
    return {
        MODULES: modules,
        **{f"{path}/config.json": config for path, config in zip(paths[1:], configs, strict=False)},
        PROMPTS: {**prompts, "prompts": named, "default_prompt_name": default},
        LENGTH: {"max_seq_length": max_source_length, "do_lower_case": False},
    }


def still_true(model):
    """Returns the `checkpoint_files` of a model, without those of sentence-transformers where it makes other vectors.

    A warning names Dense modules that the model does not have.

    Args:
        model: The model.
    """
    files, head = getattr(model, "checkpoint_files", {}), getattr(model, "head", None)
    if MODULES not in files:
        return files
    lacks = _denses(files) and not isinstance(model.pooler, ProjectedPooler)
    if lacks:
        log.warning("modules.json is not written: its Dense modules are not read. Use `with_dense_modules`")
    # The head for pretraining is no part of the vectors.
    if not lacks and (head is None or isinstance(head, MaskedLanguageHead)):
        return files
    modules = {MODULES, PROMPTS, LENGTH, *(f"{each['path']}/{CONFIG}" for each in files[MODULES])}
    return {name: content for name, content in files.items() if name not in modules}


def dense_tensors(model, files):
    """Describes the tensors of the Dense modules of a model, a dict from their folders to lists of `tensors.Tensor`.

    Args:
        model: The model.
        files: A dict, as `embedder_files` makes it.

    Raises:
        ValueError: If the files do not have a Dense for each layer of a `ProjectedPooler`, in a folder of its own.
    """
    pooler, paths = getattr(model, "pooler", None), _denses(files)
    layers = pooler.layers if isinstance(pooler, ProjectedPooler) else []
    described = {path for path in paths if f"{path}/{CONFIG}" in files}
    rule = (
        f"The Dense modules of {MODULES}, each with its {CONFIG}, must be the layers of the model's `ProjectedPooler`: "
        "`files=embedder_files(model, ...)` describes them."
    )
    check(len(layers) == len(paths) == len(described), rule, layers=len(layers), modules=paths)
    return {path: list(dense("linear", layer)) for path, layer in zip(paths, layers, strict=True)}


def _denses(files):
    """Returns the folders of the Dense modules, a list of str."""
    return [each["path"] for each in files.get(MODULES) or () if each["type"].endswith(".Dense")]


def _modules(folder):
    """Returns the folder of the pooling, those of the dense layers, and whether vectors are normalised."""
    modules = read_list(folder / MODULES, list)
    check_schema(modules, folder / MODULES, MODULES)
    kinds = [each["type"].rpartition(".")[2] for each in modules]
    normalize = kinds[-1:] == ["Normalize"]
    inner = kinds[2 : len(kinds) - normalize]
    rule = f"{folder / MODULES} must list a Transformer, a Pooling, perhaps Dense modules, and perhaps a Normalize."
    check(kinds[:2] == ["Transformer", "Pooling"] and not set(inner) - {"Dense"}, rule, modules=kinds)
    paths = [each["path"] for each in modules]
    rule = f"{folder / MODULES} must have its transformer in the folder itself, and its pooling in a folder in it."
    check(paths[0] == "" and "" not in paths[1 : 2 + len(inner)], rule, path=paths)
    return folder / paths[1], [folder / path for path in paths[2 : 2 + len(inner)]], normalize


def _dense_config(path):
    config = read_json(path, "config.json of a Dense")
    check("out_features" in config, f"{path} must have `out_features`.", keys=list(config))
    check_config(
        config, str(path), module_input_name="sentence_embedding", module_output_name="sentence_embedding"
    )
    check_sentence_file(config, "config.json of a Dense", str(path))
    return config


def _activation(config, path):
    """Returns this library's name of the activation of a dense layer."""
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    rule = f"`activation_function` of {path / 'config.json'} must be one of {sorted(ACTIVATIONS)}."
    check(name in ACTIVATIONS, rule, activation_function=config.get("activation_function"))
    return ACTIVATIONS[name]


def _pooling(path, prompt):
    config = read_json(path, "config.json of a Pooling")
    modes = config.get("pooling_mode")
    modes = list(modes) if isinstance(modes, (list, tuple)) else [modes]
    if modes == [None]:
        modes = [
            POOLING_KEYS.get(key, key)
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value
        ]
    rule = f"The pooling of {path} must be one of {sorted(POOLINGS)}."
    check(len(modes) == 1 and modes[0] in POOLINGS, rule, poolings=modes)
    if prompt:
        check_config(config, str(path), include_prompt=True)
    check_sentence_file(config, "config.json of a Pooling", str(path))
    return POOLINGS[modes[0]]


def _prompt(folder, name):
    config = read_if_there(folder, PROMPTS)
    check_sentence_file(config, PROMPTS)
    prompts = config.get("prompts") or {}
    name = config.get("default_prompt_name") if name is None else name
    if name is None:
        return ""
    rule = f"`prompt_name` must be one of {sorted(prompts)!r:.200}."
    check(name in prompts and isinstance(prompts[name], str), rule, prompt_name=name)
    return prompts[name]
