"""Writing of models and tokenizers as Hugging Face checkpoints."""

from pathlib import Path

from keras_transformer.checks import check, check_choice, check_positive
from keras_transformer.files import replaced
from keras_transformer.huggingface.adapter_writer import write_adapter
from keras_transformer.huggingface.checkpoint_files import TOKENIZER_KEYS, write_files
from keras_transformer.huggingface.families import FAMILIES
from keras_transformer.huggingface.files import CONFIG, read_json, write_config, write_json, write_tensors
from keras_transformer.huggingface.sentence_embeddings import dense_tensors, still_true
from keras_transformer.huggingface.tensors import without_copies
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG, check_read_back
from keras_transformer.keras_internals import sublayers
from keras_transformer.schemas import SCHEMAS, check_schema


def to_huggingface(
    model,
    folder,
    max_shard_bytes=5 * 2**30,
    config=None,
    tokenizers=None,
    family=None,
    files=None,
    *,
    adapter=None,
):
    """Writes a checkpoint that Hugging Face transformers loads: float32, tensor by tensor.

    config.json leaves a dropout out where the family has no key for it. That changes nothing but training.

    A model that `from_huggingface` read has `checkpoint_files`, which are written too: the search of
    generation_config.json, chat templates, keys of config.json such as `max_position_embeddings`, how images and audio
    are prepared, and the modules of sentence-transformers. docs/checkpoint_keys.md lists them.

    Args:
        model: A model that one of `FAMILIES` can describe. Its weights are not quantized; those of LoRA are added.
        folder: Path of a new folder. It appears whole or not at all.
        max_shard_bytes: Largest number of bytes of the tensors in one file. A tensor that is larger has its own file.
        config: A dict of keys for config.json that the model does not know, such as
            `{"max_position_embeddings": 8192}` for Llama, whose positions have no limit. None for none.
        tokenizers: A tuple of one tokenizer or two (source and target), whose ids are the model's, to be written
            beside the model. None to write none.
        family: The `model_type` to write. None for the one that the model was read from, or else for the first that can
            describe the model and, where there are tokenizers, whose files can hold them: RoBERTa and XLM-RoBERTa have
            the same models.
        files: A dict from a file's path in the folder to its content, a str or plain data, to be written in place of
            those of `model.checkpoint_files`; the content of None writes no file. `embedder_files` makes such a dict.
        adapter: The folder or the name of the model before its training with LoRA. The folder then holds the adapters
            alone, with the weights that are trained beside them, as PEFT loads them on that model. The model may be
            quantized. None to write the whole model.

    Raises:
        ValueError: If the folder exists; if `adapter` is given for a model without adapters, or with `config` or
            `files`; if `family` is unknown; if no family can describe the model; if the model is
            quantized; if `config` has a key that the model decides; if the family's files cannot hold `tokenizers`; or
            if a path of `files` is no name or is that of the model's own configuration, or its Dense modules are not
            those of the model.
    """
    check_positive(max_shard_bytes=max_shard_bytes)
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"`folder` must not exist yet. Received: {folder}.")
    if adapter is not None:
        rule = "`config` and `files` describe a whole model: leave them out where `adapter` is given."
        check(config is None and files is None, rule, config=config, files=files)
        with replaced(folder) as temporary:
            temporary.mkdir()
            described, own_config = _described(model, family, tokenizers, temporary, may_be_quantized=True)
            write_adapter(temporary, model, described, own_config, adapter)
        return
    config = {} if config is None else config
    rule = f"Leave {CONFIG} and {TOKENIZER_CONFIG} out of `files`: `config` and `tokenizers` say what is in them."
    check(not {CONFIG, TOKENIZER_CONFIG} & {*(files or {})}, rule, files=list(files or {}))
    beside = {**still_true(model), **(files or {})}
    for name in beside.keys() & SCHEMAS.keys():
        if beside[name] is not None:
            check_schema(beside[name], name, name)
    with replaced(folder) as temporary:
        temporary.mkdir()
        described, own_config = _described(model, family, tokenizers, temporary)
        own_config["dtype"] = "float32"
        decided = {*described.own_keys(model), "dtype"} - {*described.guessed_keys}
        clashing = sorted(config.keys() & decided)
        if clashing:
            key = clashing[0]
            raise ValueError(
                "`config` must not have a key that the model decides. "
                f"Received: {key}={config[key]!r:.200}, where the model has {own_config[key]!r}."
            )
        written = {**own_config, **config}
        write_config(temporary, written)
        tensors = list(without_copies(described.make_tensors(model)))
        if described.writes_tables:
            rows = written["max_position_embeddings"]
            tensors += [table.with_rows(rows) for table in described.make_tables(model)]
        write_tensors(temporary, tensors, max_shard_bytes)
        write_files(temporary, beside, written, described.defaults)
        for path, tensors in dense_tensors(model, beside).items():
            write_tensors(temporary / path, tensors, max_shard_bytes)


def _described(model, model_type, tokenizers, folder, may_be_quantized=False):
    """Finds the family of a model, and writes the tokenizers into a folder.

    Args:
        model: The model.
        model_type: The family that is asked for, or None for any.
        tokenizers: A tuple of tokenizers, or None for none.
        folder: An empty folder, a `pathlib.Path`.
        may_be_quantized: Whether a quantized model is described too.

    Returns:
        The `Family`, and the model's config.json.
    """
    quantized = [layer.path for layer in sublayers(model) if layer.quantization_mode]
    if quantized and not may_be_quantized:
        raise ValueError(
            f"`model` must not be quantized. Received: {len(quantized)} quantized layers, such as {quantized[0]!r}."
        )
    check_choice([None, *FAMILIES], family=model_type)
    first = FAMILIES.get(getattr(model, "checkpoint_files", {}).get(CONFIG, {}).get("model_type"))
    asked = sorted(FAMILIES.values(), key=lambda family: family is not first)
    asked = asked if model_type is None else [FAMILIES[model_type]]
    classes = sorted({each.__name__ for family in asked for each in family.model_classes})
    fitting = [family for family in asked if type(model) in family.model_classes]
    owner = "" if model_type is None else f" of a {model_type!r} model"
    rule = f"`model`{owner} must be of one of the classes {classes} itself, not of a subclass."
    check(fitting, rule, model=model)
    reasons, candidates = [], []
    for family in fitting:
        try:
            candidates.append((family, family.make_config(model)))
        except ValueError as error:
            reasons.append(str(error))
        if candidates and not tokenizers:
            return candidates[0]
    if not candidates:
        owner = "one family" if model_type is None else f"a {model_type!r} model"
        raise ValueError(f"`model` must be made of the parts of {owner}. {' '.join(reasons)}")
    reasons = []
    for candidate in candidates:
        try:
            _write_tokenizers(candidate[0], tuple(tokenizers), folder, model)
        except ValueError as error:
            reasons.append(str(error))
            for path in folder.iterdir():
                path.unlink()
        else:
            return candidate
    raise ValueError(" ".join(reasons))


def _write_tokenizers(family, tokenizers, folder, model):
    """Writes the tokenizers into a folder, then reads them to check that they are the same."""
    rule = f"`tokenizers` must be None for a model of {family.model_type!r}: its files cannot hold them."
    check(family.tokenizer is not None, rule, tokenizers=tokenizers)
    family.tokenizer.write(tokenizers, folder, model)
    kept = getattr(model, "checkpoint_files", {}).get(TOKENIZER_CONFIG, {})
    options = {key: kept[key] for key in (*TOKENIZER_KEYS, "add_bos_token") if key in kept}
    write_json(folder / TOKENIZER_CONFIG, {**read_json(folder / TOKENIZER_CONFIG), **options})
    read_back = family.tokenizer.read(folder)
    check_read_back([tokenizers[0], tokenizers[-1]][: len(read_back)], read_back)
