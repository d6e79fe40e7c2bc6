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
from keras_transformer.huggingface.families import DECODERS, FAMILIES
from keras_transformer.huggingface.files import CONFIG
from keras_transformer.huggingface.tensors import fill_weights, full_name
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG
from keras_transformer.keras_internals import without_memory

# Where KerasHub keeps what reads checkpoints of transformers. Each module gives each variable the name of its tensor.
CONVERTERS = "keras_hub.src.utils.transformers.convert_{}"
# The tokenizers whose files KerasHub writes as transformers has them; and the names of the files of the others.
EXPORTED = ("GPT2Tokenizer", "Llama3Tokenizer", "QwenTokenizer")
FILES = {"vocabulary.spm": "tokenizer.model", "vocabulary.json": "vocab.json", "vocabulary.txt": "vocab.txt"}
XLM_ROBERTA = "sentencepiece.bpe.model"
# RoBERTa has one segment. KerasHub has none: its vector is 0, or a part of the positions.
SEGMENTS = "embeddings.token_type_embeddings.weight"
# A name of KerasHub's attributes for each key of config.json.
DECODER = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_query_heads",
    "num_key_value_heads": "num_key_value_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "rms_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rope_max_wavelength",
}
ENCODER = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "max_position_embeddings": "max_sequence_length",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
}
GPT2 = {
    "vocab_size": "vocabulary_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_embd": "hidden_dim",
    "n_inner": "intermediate_dim",
    "n_positions": "max_sequence_length",
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), "dropout"),
}
DISTILBERT = {
    "vocab_size": "vocabulary_size",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "dim": "hidden_dim",
    "hidden_dim": "intermediate_dim",
    "max_position_embeddings": "max_sequence_length",
    **dict.fromkeys(("dropout", "attention_dropout"), "dropout"),
}


def _query_scalar(backbone):
    """Returns what the root of divides Gemma's queries. KerasHub 0.32 does not hand the option of a backbone on."""
    by_head = backbone.transformer_layers[0].attention.query_head_dim_normalize
    return backbone.head_dim if by_head else backbone.hidden_dim / backbone.num_query_heads


GEMMA2 = {
    **{key: attribute for key, attribute in DECODER.items() if key != "rope_theta"},
    "intermediate_size": lambda backbone: backbone.intermediate_dim // 2,
    "head_dim": "head_dim",
    "query_pre_attn_scalar": _query_scalar,
    "final_logit_softcapping": "final_logit_soft_cap",
    "attn_logit_softcapping": "attention_logit_soft_cap",
    "sliding_window": "sliding_window_size",
}


# What a backbone must have: Gemma 1 lacks the first two.
GEMMA2_HAS = ("use_post_ffw_norm", "use_post_attention_norm", "use_sliding_window_attention")


class Kind(NamedTuple):
    """A backbone of KerasHub.

    model_type: The `model_type` of transformers.
    converter: Name of the module of KerasHub that reads the checkpoints of transformers.
    keys: A dict from a key of config.json to the attribute of the backbone, or to a function of the backbone.
    fixed: The other keys, a dict.
    has: Attributes that must be True.
    """

    model_type: str
    converter: str
    keys: dict
    fixed: dict
    has: tuple = ()


def _roberta(model_type, converter):
    fixed = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
    return Kind(model_type, converter, ENCODER, fixed)


KINDS = {
    "GPT2Backbone": Kind(
        "gpt2", "gpt2", GPT2, {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    ),
    "LlamaBackbone": Kind("llama", "llama3", DECODER, {}),
    "Llama3Backbone": Kind("llama", "llama3", DECODER, {}),
    "MistralBackbone": Kind("mistral", "mistral", {**DECODER, "sliding_window": "sliding_window"}, {}),
    "QwenBackbone": Kind("qwen2", "qwen", DECODER, {}),
    "GemmaBackbone": Kind(
        "gemma2",
        "gemma",
        GEMMA2,
        {"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0},
        GEMMA2_HAS,
    ),
    "BertBackbone": Kind(
        "bert",
        "bert",
        {**ENCODER, "type_vocab_size": "num_segments"},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12},
    ),
    "RobertaBackbone": _roberta("roberta", "roberta"),
    "XLMRobertaBackbone": _roberta("xlm-roberta", "xlm_roberta"),
    "DistilBertBackbone": Kind("distilbert", "distilbert", DISTILBERT, {"activation": "gelu"}),
}


def from_keras_hub(model, **kwargs):
    """Makes a model of this library with the weights of a model of KerasHub, and computes what that computes.

    It needs KerasHub, from which the model comes, and reads no file. `tokenizer_from_keras_hub` makes the tokenizer.

    Args:
        model: A backbone of KerasHub, or a task with a `backbone`, such as a `CausalLM`: GPT-2, Llama, Llama 3,
            Mistral, Qwen (2 and 2.5), Gemma 2, BERT, RoBERTa, XLM-RoBERTa or DistilBERT. Of a task with a head of its
            own, such as a `TextClassifier`, it is the backbone.
        **kwargs: As for `from_huggingface`: Keras's `dtype`, `name`, `trainable`, and the ids of the special tokens.
            Ids that are not given are those of the task's tokenizer.

    Returns:
        A `LanguageModel`, or an `EncoderModel`.

    Raises:
        ValueError: If the model is of another kind, has options that the library does not have, or the installed
            KerasHub names its weights otherwise.
    """
    backbone, kind = _known(model)
    config, family = _config_of(backbone, kind), FAMILIES[kind.model_type]
    kwargs = {**_ids_of(_tokenizer_of(model), kind.model_type in DECODERS), **kwargs}
    places = _Places(backbone)
    importlib.import_module(CONVERTERS.format(kind.converter)).convert_weights(backbone, places, config)
    kwargs |= family.arguments_of_tensors(config, set(places.names))
    with without_memory():
        made = family.make_model(config, **kwargs)
    tensors = {tensor.name: tensor for tensor in family.make_tensors(made)}
    stored = []
    for name, ported in places.names.items():
        full = full_name(name, tensors.keys(), family.prefix, family.renamed)
        check(full in tensors, "KerasHub must give its weights the names of transformers.", name=name)
        stored.append(_Ported(full, tensors[full].shape, ported))
    if SEGMENTS not in places.names:
        stored += [_Ported(name, each.shape, []) for name, each in tensors.items() if name.endswith(SEGMENTS)]
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
    check(
        tokenizer is not None,
        "`model` must be a task of KerasHub with a `preprocessor`.",
        model=type(model).__name__,
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if type(tokenizer).__name__ in EXPORTED:
            tokenizer.export_to_transformers(str(folder))
        else:
            tokenizer.save_assets(str(folder))
            for name, new in FILES.items():
                if (folder / name).is_file():
                    (folder / name).rename(
                        folder / (XLM_ROBERTA if kind.model_type == "xlm-roberta" else new)
                    )
            options = {"do_lower_case": bool(getattr(tokenizer, "lowercase", False))}
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(options))
        (folder / CONFIG).write_text(json.dumps({"model_type": kind.model_type}))
        (found,) = tokenizers_from_huggingface(folder)
    return found


def _known(model):
    """Returns the backbone of a model of KerasHub, and its `Kind`."""
    backbone = getattr(model, "backbone", model)
    kind = KINDS.get(type(backbone).__name__)
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
    for name in kind.has:
        check(
            getattr(backbone, name), f"`{name}` of a {kind.model_type!r} model must be True.", **{name: False}
        )
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
        for name, usual in (("rope_position_scaling_factor", 1.0), ("rope_scaling_factor", 1.0)):
            value = getattr(backbone, name, usual)
            check(value == usual, f"`{name}` must be {usual}.", **{name: value})
        check(
            not getattr(backbone, "use_sliding_window_attention", False),
            "`use_sliding_window_attention` must be False.",
        )
    if "pad_token_id" in kind.fixed:
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
            rule = f"{self.name} must have the elements of {variable.path}."
            check(
                tuple(index.shape) == tuple(variable.shape),
                rule,
                shape=self.shape,
                variable=tuple(variable.shape),
            )
            values[np.asarray(index)] = keras.ops.convert_to_numpy(variable)
        return values.reshape(self.shape)
