"""Hugging Face checkpoints in and out.

A family is a module with

- `model(config, **kwargs)`: our model of a config.json,
- `config(model)`: the way back, read off the model's parts,
- `tensors(model)`: the `Tensor`s of its checkpoints, each with the weights of ours that lie in it,
- `PREFIX`: what the tensors' names may leave out; `BUFFERS`: patterns of the names of tensors that are no weights;
- `FREE`: keys that `config` guesses;
- `computed(model)`, where there are any: the `Computed`s that its checkpoints may hold;
- `completed(config, names)`, where config.json alone does not tell: the configuration with what the names of the stored
  tensors tell;
- `RENAMED`, where there is one: what old names of tensors end with, and what that is now;
- `tokenizers(folder, config)`, where there is one: the tokenizers of its folders, the source's and the target's or one
  for both; `write_tokenizers(tokenizers, folder, model)`, the way back; and `TOKENIZER_FILES`: what must be there, each
  a tuple of names of which one will do.
"""

from pathlib import Path

from keras_transformer.checks import check_positive
from keras_transformer.files import replaced
from keras_transformer.huggingface import bert, gpt2, llama, marian, t5, vit
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import (
    read_config,
    stored_tensors,
    write_config,
    write_tensors,
)
from keras_transformer.huggingface.images import preprocessing_from_huggingface
from keras_transformer.huggingface.tensors import fill, without_copies
from keras_transformer.huggingface.tokenizers import check_read_back

FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama, "marian": marian, "t5": t5, "vit": vit}
# What is left where there is no tokenizer.
IDS_ALONE = "In Python `from_huggingface` reads the model alone, for ids."

__all__ = [
    "FAMILIES",
    "from_huggingface",
    "preprocessing_from_huggingface",
    "to_huggingface",
    "tokenizers_from_huggingface",
]


def from_huggingface(folder, **kwargs):
    """Makes a model of a checkpoint, and fills it tensor by tensor.

    `architectures` decides the head of an encoder: `BertModel`, `BertForMaskedLM`, `BertForSequenceClassification`,
    `BertForMultipleChoice` or `BertForTokenClassification`. Another head is put on with `EncoderModel.with_head`.

    The prompt of a `LanguageModel` ends at its last token that is no padding. Where config.json has no `pad_token_id`,
    `pad_id` is `eos_token_id`: for GPT-2 the only token that stands in no text. An eos at the end of a prompt is then
    padding.

    What generation_config.json asks for is handed to `generate`, or to a `Translator`. Marian's forbids padding and
    renormalises (`bad_words_ids`, `renormalize_logits`): `constraints=[ExcludeTokens([model.pad_id])]`, without which
    padding may be the likeliest token. `num_beams` and `length_penalty` are `Beam(num_beams, length_penalty,
    normalization="length")`. At its limit an output ends without the eos of `forced_eos_token_id`.

    Args:
        folder: Holds config.json, and model.safetensors or the files that model.safetensors.index.json names, of a
            `model_type` among `FAMILIES`. Values are float64, float32, float16 or bfloat16.
        **kwargs: Keras's own `dtype`, `name`, `trainable`; and `pad_id`, `bos_id`, `eos_id` of a language model where
            those of config.json are not to hold, or it has several; for an encoder `pad_id`, `cls_id`, `sep_id`, which
            it often has not.

    Returns:
        A `LanguageModel` for GPT-2 and Llama; a `Transformer` for Marian; a `T5`; an `EncoderModel` for BERT; a
        `VisionTransformer`, with the classes of a `ViTForImageClassification`, with or without the pooler of a
        `ViTModel`.

    Raises:
        ValueError: If a file is missing, damaged or pickled; config.json asks for what there is no part for; or a
            tensor is missing, left over, of another shape, or differs from the one it is tied to or from what is
            computed in its place.
        ImportError: If safetensors is not installed.
    """
    config, family = _read(folder)
    check_config(config, quantization_config=None)
    stored = stored_tensors(folder)
    if hasattr(family, "completed"):
        config = family.completed(config, {each.name for each in stored})
    model = family.model(config, **kwargs)
    computed = family.computed(model) if hasattr(family, "computed") else ()
    renamed = getattr(family, "RENAMED", {})
    fill(family.tensors(model), stored, family.PREFIX, family.BUFFERS, computed, renamed)
    return model


def tokenizers_from_huggingface(folder):
    """The tokenizers of a checkpoint's folder, as ours: the source's and the target's, or one for both.

    Args:
        folder: As for `from_huggingface`, with the tokenizer's files beside.

    Returns:
        A tuple of one or two, whose ids are the model's.

    Raises:
        ValueError: If tensorflow-text has no such tokenizer, as Llama 3's, or a file is missing or damaged.
    """
    config, family = _read(folder)
    if not hasattr(family, "tokenizers"):
        raise ValueError(
            f"`folder` must have a tokenizer that tensorflow-text has. Received: {folder}, a "
            f"{config['model_type']!r} model, whose byte-level pieces it has not. {IDS_ALONE}"
        )
    folder = Path(folder)
    missing = [
        " or ".join(names)
        for names in family.TOKENIZER_FILES
        if not any((folder / name).is_file() for name in names)
    ]
    if missing:
        raise ValueError(
            f"`folder` must have the files of the model's tokenizer. Received: {folder} without {', '.join(missing)}. "
            f"{IDS_ALONE}"
        )
    return family.tokenizers(folder, config)


def to_huggingface(model, folder, max_shard_bytes=5 * 2**30, config=None, tokenizers=None):
    """Writes a checkpoint that transformers loads, in float32, tensor by tensor.

    Dropout that the family has no key for is left out: it changes nothing but training.

    Args:
        model: A model of the parts of one of `FAMILIES`.
        folder: A new folder, which appears whole or not at all.
        max_shard_bytes: Most bytes of tensors in a file.
        config: What config.json is to say that the model does not, a dict: `{"max_position_embeddings": 8192}` for
            Llama, whose positions have no end.
        tokenizers: What `tokenizers_from_huggingface` is to give again and transformers to read: one or two, whose ids
            are the model's. None to write none.

    Raises:
        ValueError: If the folder exists, no family has all of the model's parts, `config` says what the model does, or
            the family's files have no form for `tokenizers`.
    """
    check_positive(max_shard_bytes=max_shard_bytes)
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"`folder` must not exist yet. Received: {folder}.")
    family, said = _described(model)
    said["dtype"] = "float32"
    config = {} if config is None else config
    taken = sorted(config.keys() & said.keys() - set(family.FREE))
    if taken:
        raise ValueError(
            f"`config` must not say what the model does. Received: {taken[0]}={config[taken[0]]!r}, "
            f"where the model has {said[taken[0]]!r}."
        )
    with replaced(folder) as temporary:
        temporary.mkdir()
        write_config(temporary, {**said, **config})
        if tokenizers:
            _write_tokenizers(family, tuple(tokenizers), temporary, model)
        write_tensors(temporary, list(without_copies(family.tensors(model))), max_shard_bytes)


def _write_tokenizers(family, tokenizers, folder, model):
    """Writes a family's tokenizers, if it has them, into a folder, and reads them again."""
    if not hasattr(family, "write_tokenizers"):
        raise ValueError(
            f"`tokenizers` must be None for a model of {family.__name__.split('.')[-1]!r}: there is no form for "
            f"them. Received: tokenizers={tokenizers!r}."
        )
    family.write_tokenizers(tokenizers, folder, model)
    again = family.tokenizers(folder, read_config(folder))
    check_read_back([tokenizers[0], tokenizers[-1]][: len(again)], again)


def _read(folder):
    """A folder's configuration, and its family."""
    config = read_config(folder)
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"`model_type` of config.json must be one of {sorted(FAMILIES)}. Received: model_type={model_type!r}."
        )
    return config, FAMILIES[model_type]


def _described(model):
    """The family of a model, and its configuration there."""
    reasons = []
    for family in FAMILIES.values():
        try:
            return family, family.config(model)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(f"`model` must be made of the parts of one family. {' '.join(reasons)}")
