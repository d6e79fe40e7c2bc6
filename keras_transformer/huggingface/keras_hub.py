"""Models of KerasHub as models of this library."""

import importlib
import json
import math
import tempfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check
from keras_transformer.huggingface.checkpoint import tokenizers_from_huggingface
from keras_transformer.huggingface.families import DECODERS, ENCODER_DECODERS, FAMILIES
from keras_transformer.huggingface.files import CONFIG
from keras_transformer.huggingface.keras_hub_kinds import GEMMA2_BACKBONE, KINDS, query_scalar
from keras_transformer.huggingface.tensors import fill_weights, full_name
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG
from keras_transformer.keras_internals import sublayers, without_memory

# Where KerasHub keeps what reads checkpoints of transformers. Each module gives each variable the name of its tensor.
CONVERTERS = "keras_hub.src.utils.transformers.convert_{}"
# The tokenizers whose files KerasHub writes as transformers has them; and the names of the files of the others.
EXPORTED = ("GPT2Tokenizer", "Llama3Tokenizer", "QwenTokenizer")
FILES = {"vocabulary.spm": "tokenizer.model", "vocabulary.json": "vocab.json", "vocabulary.txt": "vocab.txt"}
XLM_ROBERTA = "sentencepiece.bpe.model"
SPIECE = "spiece.model"
# RoBERTa has one segment. KerasHub has none: its vector is 0, or a part of the positions. Its BART has no bias.
SEGMENTS, BIAS = "embeddings.token_type_embeddings.weight", "final_logits_bias"


def from_keras_hub(model, **kwargs):
    """Makes a model of this library with the weights of a model of KerasHub, and computes what that computes.

    It needs KerasHub, from which the model comes, and reads no file. `tokenizer_from_keras_hub` makes the tokenizer.
    In training, Llama, Mistral, Qwen and Gemma have the backbone's dropout at the attention weights alone, the one
    place where the checkpoints of transformers have it.

    Args:
        model: A backbone of KerasHub, or a task with a `backbone`, such as a `CausalLM`: GPT-2, Llama, Llama 3,
            Mistral, Qwen (2 and 2.5), Gemma 1, 2 and 3 (text alone), BERT, RoBERTa, XLM-RoBERTa, DistilBERT, BART or
            T5. Of a task with a head of its own, such as a `TextClassifier`, it is the backbone.
        **kwargs: As for `from_huggingface`: Keras's `dtype`, `name`, `trainable`, and the ids of the special tokens.
            Ids that are not given are those of the task's tokenizer.

    Returns:
        A `LanguageModel`, an `EncoderModel`, or a `Transformer` or `T5`, which reads a source.

    Raises:
        ValueError: If the model is of another kind, is quantized or has LoRA, has options that the library does not
            have, or the installed KerasHub names its weights otherwise.
    """
    backbone, kind = _known(model)
    check_plain_weights(backbone)
    config, family = _config_of(backbone, kind), FAMILIES[kind.model_type]
    if kind.model_type not in ENCODER_DECODERS:
        kwargs = {**_ids_of(_tokenizer_of(model), kind.model_type in DECODERS), **kwargs}
    places, port = _Places(backbone), kind.converter
    if isinstance(port, str):
        port = importlib.import_module(CONVERTERS.format(port)).convert_weights
    port(backbone, places, config)
    kwargs |= family.arguments_of_tensors(config, set(places.names))
    with without_memory():
        made = family.make_model(config, **kwargs)
    tensors = {tensor.name: tensor for tensor in family.make_tensors(made)}
    stored = []
    for name, ported in places.names.items():
        full = full_name(name, tensors.keys(), family.prefix, family.renamed)
        check(full in tensors, "KerasHub must give its weights the names of transformers.", name=name)
        stored.append(_Ported(full, tensors[full].shape, ported))
    given = {each.name for each in stored}
    stored += [
        _Ported(name, each.shape, [])
        for name, each in tensors.items()
        if name.endswith((SEGMENTS, BIAS)) and name not in given
    ]
    fill_weights(list(tensors.values()), stored, family.prefix)
    return made


def tokenizer_from_keras_hub(model):
    """Makes a tokenizer of `keras_transformer.text` with the ids of a KerasHub task's tokenizer.

    Args:
        model: A task of KerasHub with a `preprocessor`, of a kind that `from_keras_hub` reads.

    Raises:
        ValueError: If the model has no tokenizer, or it asks for something that no tokenizer of `text` does.
    """
    (_, kind), tokenizer = _known(model), _tokenizer_of(model)
    rule = "`model` must be a task of KerasHub with a `preprocessor`."
    check(tokenizer is not None, rule, model=type(model).__name__)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if type(tokenizer).__name__ in EXPORTED:
            tokenizer.export_to_transformers(str(folder))
        else:
            tokenizer.save_assets(str(folder))
            own = {"xlm-roberta": XLM_ROBERTA, "t5": SPIECE}
            for name, new in FILES.items():
                if (folder / name).is_file():
                    (folder / name).rename(folder / own.get(kind.model_type, new))
            options = {"do_lower_case": bool(getattr(tokenizer, "lowercase", False))}
            # Those of T5 are among the pieces of its file, if anywhere.
            options |= {"extra_ids": 0} if kind.model_type == "t5" else {}
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(options))
        (folder / CONFIG).write_text(json.dumps({"model_type": kind.model_type}))
        (found,) = tokenizers_from_huggingface(folder)
    return found


def check_plain_weights(layer):
    """Raises `ValueError` if a layer, or one in it, is quantized or has LoRA: its kernel alone is not its weights."""
    for each in [layer, *sublayers(layer)]:
        rule = "The model must not be quantized: read its weights before `quantize`."
        mode = getattr(each, "quantization_mode", None)
        check(mode is None, rule, layer=each.path, quantization_mode=mode)
        rule = "The model must not have LoRA: merge LoRA into the weights first."
        check(not getattr(each, "lora_enabled", False), rule, layer=each.path)


def _known(model):
    """Returns the backbone of a model of KerasHub, and its `Kind`."""
    backbone = getattr(model, "backbone", model)
    name = type(backbone).__name__
    is_second = name == "GemmaBackbone" and backbone.use_post_ffw_norm
    kind = KINDS.get(GEMMA2_BACKBONE if is_second else name)
    rule = f"`model` must be a model of KerasHub with one of the backbones {', '.join(KINDS)}."
    check(kind is not None, rule, model=type(model).__name__)
    return backbone, kind


def _tokenizer_of(model):
    return getattr(getattr(model, "preprocessor", None), "tokenizer", None)


def _ids_of(tokenizer, decodes):
    """Returns the special ids of a tokenizer of KerasHub as arguments of a model, a dict."""
    first, last = ("bos_id", "eos_id") if decodes else ("cls_id", "sep_id")
    names = {first: "start_token_id", last: "end_token_id"}
    # Others fill rows up with the id of a text.
    names |= {"pad_id": "pad_token_id"} if getattr(tokenizer, "pad_token", None) is not None else {}
    ids = {name: getattr(tokenizer, attribute, None) for name, attribute in names.items()}
    return {name: value for name, value in ids.items() if value is not None}


def _config_of(backbone, kind):
    """Returns the config.json of a backbone, a dict."""
    for name, expected in kind.has.items():
        value = getattr(backbone, name)
        rule = f"`{name}` of a {kind.model_type!r} model must be {expected}."
        check(value == expected if expected is not None else value is None, rule, **{name: value})
    if kind.model_type == "gemma":
        rule = "`query_head_dim_normalize` of a 'gemma' model must be True."
        check(query_scalar(backbone) == backbone.head_dim, rule, query_head_dim_normalize=False)
    config = {
        key: where(backbone) if callable(where) else getattr(backbone, where)
        for key, where in kind.keys.items()
    }
    config |= {"model_type": kind.model_type, **kind.fixed}
    if kind.keys.get("rope_theta"):
        config["tie_word_embeddings"] = bool(getattr(backbone, "tie_word_embeddings", False))
        head_dim = getattr(backbone, "head_dim", None)
        config |= {} if head_dim is None else {"head_dim": head_dim}
        scaling = {
            "factor": "rope_frequency_adjustment_factor",
            "low_freq_factor": "rope_low_freq_factor",
            "high_freq_factor": "rope_high_freq_factor",
            "original_max_position_embeddings": "rope_pretraining_sequence_length",
        }
        if getattr(backbone, scaling["factor"], None) is not None:
            values = {key: getattr(backbone, attribute) for key, attribute in scaling.items()}
            config["rope_scaling"] = {"rope_type": "llama3", **values}
        for name in ("rope_position_scaling_factor", "rope_scaling_factor"):
            value = getattr(backbone, name, 1.0)
            check(value == 1.0, f"`{name}` must be 1.", **{name: value})
        windows = getattr(backbone, "use_sliding_window_attention", False)
        check(
            not windows, "`use_sliding_window_attention` must be False.", use_sliding_window_attention=windows
        )
    if kind.model_type.endswith("roberta"):
        # transformers counts the positions from the id of padding on.
        config["max_position_embeddings"] += kind.fixed["pad_token_id"] + 1
    return config


class _Index(np.ndarray):
    """Numbers of elements, which keep their dtype: some converters make float16 of a checkpoint."""

    def astype(self, *_, **__):
        return self


class _Places:
    """Takes the place of KerasHub's reader of checkpoints, and keeps where each variable lies in which tensor.

    Attributes:
        names: A dict from a tensor's name to a list of pairs of a variable and its hook.
    """

    def __init__(self, backbone):
        self.names, self._width = {}, getattr(backbone, "hidden_dim", 0)

    def get_tensor(self, name):
        """Returns the vector of RoBERTa's segment. Raises `KeyError` for older names, which converters look for."""
        if not name.endswith(SEGMENTS):
            raise KeyError(name)
        return np.zeros((1, self._width), int)

    def port_weight(self, keras_variable, hf_weight_key, hook_fn=None):
        """Keeps the place of a variable."""
        self.names.setdefault(hf_weight_key, []).append((keras_variable, hook_fn))


class _Ported(NamedTuple):
    """A tensor of a checkpoint that no file holds: its values are those of KerasHub's variables.

    name: Its name, with the family's prefix.
    shape: A tuple of int.
    parts: List of pairs of a variable and its hook, which cuts and turns the tensor into the variable.
    """

    name: str
    shape: tuple
    parts: list

    def problems(self, expected_shape):
        """Returns an empty list: the shape is the expected one."""
        return []

    def read(self):
        """Returns the values, a float32 array. Each hook is applied to the numbers of the elements, which says where
        the elements of its variable lie; those of no variable are 0, such as the positions before RoBERTa's first."""
        values = np.zeros(math.prod(self.shape), "float32")
        numbers = np.arange(values.size).reshape(self.shape).view(_Index)
        for variable, hook in self.parts:
            index = numbers if hook is None else hook(numbers, list(variable.shape))
            rule, expected = f"{self.name} must have the elements of {variable.path}.", tuple(variable.shape)
            check(tuple(index.shape) == expected, rule, shape=self.shape, variable=expected)
            values[np.asarray(index)] = keras.ops.convert_to_numpy(variable)
        return values.reshape(self.shape)
