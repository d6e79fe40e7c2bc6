"""A small configuration for each kind of model of each family, and models of it, here and in transformers."""

import json
import logging
import warnings

import keras
import numpy as np
from safetensors.numpy import load_file, save_file

from keras_transformer.huggingface import FAMILIES
from keras_transformer.huggingface.tensors import without_copies
from keras_transformer.models import EncoderDecoder, EncoderModel, MultipleChoiceHead, VisionTransformer

VOCAB, EOS = 31, 29
LENGTHS = (11, 7, 2, 5)
WEIGHTS = "model.safetensors"
# fmt: off
GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": 23, "n_embd": 15, "n_layer": 2, "n_head": 5,
    "bos_token_id": 30, "eos_token_id": EOS,
}
DECODER = {
    "vocab_size": VOCAB, "hidden_size": 18, "intermediate_size": 13, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "bos_token_id": 30, "eos_token_id": EOS,
}
LLAMA = {"model_type": "llama", **DECODER}
T5 = {
    "model_type": "t5", "vocab_size": VOCAB, "d_model": 15, "d_kv": 7, "d_ff": 19, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9, "decoder_start_token_id": 0,
}
SEQ2SEQ = {
    "vocab_size": VOCAB, "d_model": 18, "encoder_layers": 2, "encoder_ffn_dim": 13, "encoder_attention_heads": 3,
    "decoder_layers": 1, "decoder_ffn_dim": 13, "decoder_attention_heads": 3, "activation_function": "silu",
}
MARIAN = {
    "model_type": "marian", **SEQ2SEQ, "scale_embedding": True, "max_position_embeddings": 64, "pad_token_id": 30,
    "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": 30,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
FAST = {"rope_type": "default", "rope_theta": 50.0}
LOCAL = ["sliding_attention", "full_attention"]
GEMMA = {**DECODER, "pad_token_id": 0, "sliding_window": 4, "query_pre_attn_scalar": 7}
PHI = {key: value for key, value in DECODER.items() if key != "head_dim"} | {"hidden_size": 24, "pad_token_id": 0}
BART = {
    **SEQ2SEQ, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2,
    "decoder_start_token_id": 2, "max_position_embeddings": 23,
}
WHISPER = {
    **SEQ2SEQ, "architectures": ["WhisperForConditionalGeneration"], "activation_function": "gelu", "num_mel_bins": 5,
    "max_source_positions": 7, "max_target_positions": 23, "pad_token_id": EOS, "bos_token_id": EOS,
    "eos_token_id": EOS, "decoder_start_token_id": 28, "begin_suppress_tokens": None,
}
ENCODER = {
    "vocab_size": VOCAB, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5,
    "intermediate_size": 19, "max_position_embeddings": 17, "initializer_range": 0.3,
}
BERT = {
    "model_type": "bert", "vocab_size": VOCAB, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5,
    "intermediate_size": 19, "max_position_embeddings": 13, "type_vocab_size": 3,
}
ROBERTA = {**ENCODER, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISTILBERT = {
    "vocab_size": VOCAB, "dim": 15, "n_layers": 2, "n_heads": 3, "hidden_dim": 19, "max_position_embeddings": 17,
}
MODERNBERT = {
    "vocab_size": VOCAB, "hidden_size": 18, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 19,
    "local_attention": 4, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}
LABELS = {"id2label": {"0": "sad", "1": "glad", "2": "neither"}}
BARE_VIT = {
    "model_type": "vit", "architectures": ["ViTModel"], "hidden_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 17, "image_size": [6, 10], "patch_size": [2, 5], "num_channels": 3,
    "has_pooler": False,
}
VIT = {
    **BARE_VIT, "architectures": ["ViTForImageClassification"],
    "id2label": {"0": "cat", "1": "dog", "2": "bird", "3": "fish", "4": "bee"},
}
MASKED, CLASSES = {"architectures": ["BertForMaskedLM"]}, {"architectures": ["BertForSequenceClassification"]}


def _variants(model_type, base, changes):
    """Returns the configurations of a family: a case `model_type-name` for each dict of changes."""
    cases = {f"{model_type}-{name}" if name else model_type: each for name, each in changes.items()}
    return {case: {**base, "model_type": model_type, **each} for case, each in cases.items()}


def _heads(model_type, kind, base, changes=None, heads=None):
    """Returns a configuration for each class of transformers that a family reads, and those of the changes.

    A change names the class that it is made of by its "head". `heads` names the classes, where not all are wanted.
    """
    labels = {**LABELS, "classifier_dropout": 0.2} if "roberta" in model_type else LABELS
    options = {
        "Model": {}, "ForMaskedLM": {}, "ForSequenceClassification": labels, "ForMultipleChoice": {},
        "ForTokenClassification": LABELS, "ForQuestionAnswering": {},
    }
    classes = {
        head: {**options[head], "architectures": [kind + head]}
        for head in heads or options if kind + head in FAMILIES[model_type].architectures
    }
    more = {name: {**classes[each.pop("head")], **each} for name, each in (changes or {}).items()}
    return _variants(model_type, base, {**classes, **more})


FIRST = {
    **_variants("gpt2", GPT2, {
        "": {},
        "untied": {"tie_word_embeddings": False, "n_inner": 19, "layer_norm_epsilon": 1e-3},
        "relu-unscaled": {"activation_function": "relu", "scale_attn_weights": False},
        "gelu": {"activation_function": "gelu"},
    }),
    **_variants("llama", LLAMA, {
        "": {},
        "tied": {
            "tie_word_embeddings": True, "num_key_value_heads": None, "num_attention_heads": 3, "head_dim": None
        },
        "one-key": {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        "linear": {"rope_parameters": LINEAR},
        "llama3": {"rope_parameters": LLAMA3},
        "biases": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
        "yarn": {"rope_parameters": YARN},
    }),
    **_variants("t5", T5, {
        "": {},
        "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "tied-unscaled": {"feed_forward_proj": "gated-silu", "scale_decoder_outputs": False},
    }),
    **_variants("marian", MARIAN, {
        "": {},
        "two-vocabularies": {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 37, "scale_embedding": False,
            "activation_function": "gelu",
        },
        "odd": {"d_model": 15, "encoder_layers": 1, "decoder_layers": 2, "activation_function": "relu"},
    }),
}
FIRST_ENCODERS = {
    **_variants("bert", BERT, {
        "model": {"architectures": ["BertModel"]},
        "masked": MASKED,
        "masked-tanh": {
            **MASKED, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "pad_token_id": 30, "type_vocab_size": 1
        },
        "classes": CLASSES,
        "number": {**CLASSES, "id2label": {"0": "LABEL_0"}},
        "named": {**CLASSES, **LABELS, "hidden_dropout_prob": 0.3},
        "choice": {"architectures": ["BertForMultipleChoice"], "classifier_dropout": 0.2},
        "tags": {"architectures": ["BertForTokenClassification"], **LABELS, "hidden_act": "relu"},
    }),
    **_variants("vit", BARE_VIT, {
        "classes": VIT,
        "two-classes": {"architectures": ["ViTForImageClassification"]},
        "square-grey-relu": {**VIT, "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_act": "relu"},
        "states": {},
        "pooler": {"layer_norm_eps": 1e-3, "has_pooler": True},
        "pooler-gelu": {
            "pooler_output_size": 7, "pooler_act": "gelu_new", "hidden_act": "gelu_new", "has_pooler": True
        },
    }),
}
ENCODERS = {
    **_variants("bert", {**BERT, **ENCODER}, {"ForQuestionAnswering": {"architectures": ["BertForQuestionAnswering"]}}),
    **_heads("roberta", "Roberta", ROBERTA, {
        "odd": {"head": "ForMaskedLM", "hidden_act": "gelu_new", "num_attention_heads": 1},
    }),
    # These have the heads of another family: two for each, so that each head is in two families or more.
    **_heads(
        "xlm-roberta", "XLMRoberta", {**ENCODER, "type_vocab_size": 1, "pad_token_id": 3},
        heads=("Model", "ForMultipleChoice"),
    ),
    **_heads("mpnet", "MPNet", ENCODER, {
        "one-layer": {"head": "Model", "num_hidden_layers": 1, "num_attention_heads": 3},
    }, ("Model", "ForSequenceClassification")),
    **_heads("distilbert", "DistilBert", DISTILBERT, {
        "relu": {"head": "ForMaskedLM", "activation": "relu", "n_heads": 1},
    }),
    **_heads("electra", "Electra", {**ENCODER, "embedding_size": 7, "type_vocab_size": 3}, {
        "wide": {"head": "ForSequenceClassification", "embedding_size": 15, "hidden_act": "relu"},
    }),
    **_heads("modernbert", "ModernBert", MODERNBERT, {
        "mean": {
            "head": "ForSequenceClassification", "classifier_pooling": "mean", "classifier_bias": True,
            "classifier_activation": "relu", "num_attention_heads": 1, "local_attention": 2,
        },
        "biases": {
            "head": "ForMaskedLM", "norm_bias": True, "attention_bias": True, "mlp_bias": True,
            "hidden_activation": "silu", "layer_types": [*LOCAL, *LOCAL[::-1], "full_attention"],
            "rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 300.0}, "sliding_attention": FAST},
        },
    }),
    **_heads(
        "camembert", "Camembert", {**ENCODER, "type_vocab_size": 1}, heads=("Model", "ForMaskedLM")
    ),
    **_heads(
        "data2vec-text", "Data2VecText", {**ENCODER, "type_vocab_size": 1}, heads=("Model", "ForTokenClassification")
    ),
    **_heads(
        "ernie", "Ernie", {**ENCODER, "type_vocab_size": 3}, heads=("Model", "ForSequenceClassification")
    ),
}
DECODERS = {
    **_variants("mistral", DECODER, {
        "": {"sliding_window": 4},
        "whole": {"sliding_window": None, "tie_word_embeddings": True},
        "odd": {"num_key_value_heads": 1, "sliding_window": 1, "head_dim": 4},
    }),
    **_variants("qwen2", DECODER, {
        "": {},
        "tied": {"tie_word_embeddings": True, "num_key_value_heads": 6},
        "windows": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    }),
    **_variants("qwen3", DECODER, {
        "": {},
        "biases": {"attention_bias": True, "tie_word_embeddings": True},
        "linear": {"rope_parameters": LINEAR, "num_key_value_heads": 1},
    }),
    **_variants("phi3", PHI, {
        "": {},
        "window": {"sliding_window": 5},
        "tied": {"hidden_size": 12, "num_key_value_heads": 6, "tie_word_embeddings": True},
    }),
    **_variants("gemma", {**DECODER, "head_dim": 4, "pad_token_id": 0}, {
        "": {"tie_word_embeddings": True},
        # Gemma's first files say so, and mean the form with tanh.
        "one-key": {"num_key_value_heads": 1, "attention_bias": True, "hidden_act": "gelu"},
    }),
    **_variants("gemma2", GEMMA, {
        "": {},
        "without-caps": {
            "final_logit_softcapping": None, "attn_logit_softcapping": None, "tie_word_embeddings": False
        },
        "small-caps": {
            "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0, "layer_types": LOCAL[::-1]
        },
    }),
    **_variants("gemma3_text", GEMMA, {
        "": {"layer_types": LOCAL},
        "local": {"num_key_value_heads": 6, "query_pre_attn_scalar": 10},
        "linear": {
            "layer_types": LOCAL, "rope_parameters": {"full_attention": LINEAR, "sliding_attention": FAST}
        },
    }),
    **_variants("ministral", DECODER, {"": {"sliding_window": 4, "layer_types": LOCAL}}),
    **_variants("smollm3", {**DECODER, "pad_token_id": 0}, {
        "": {"no_rope_layer_interval": 2},
        "windows": {"use_sliding_window": True, "sliding_window": 3, "no_rope_layers": [0, 1]},
    }),
    **_variants("olmo2", {**DECODER, "pad_token_id": 0}, {
        "": {},
        "tied": {"tie_word_embeddings": True, "num_key_value_heads": None, "attention_bias": True},
    }),
}
BART_CHANGES = {
    "": {},
    "scaled": {"scale_embedding": True, "activation_function": "gelu"},
    "uneven": {
        "scale_embedding": False, "activation_function": "relu", "encoder_ffn_dim": 7, "decoder_attention_heads": 9,
        "encoder_layers": 1, "decoder_layers": 3,
    },
}
ENCODER_DECODERS = {
    **_variants("mt5", T5, {"": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}),
    **_variants("umt5", T5, {
        "": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "tied": {"feed_forward_proj": "relu"},
    }),
    **_variants("bart", BART, BART_CHANGES),
    **_variants("whisper", WHISPER, {
        "": {},
        "own-padding": {"pad_token_id": 30, "scale_embedding": True, "activation_function": "relu"},
        "uneven": {
            "num_mel_bins": 3, "encoder_ffn_dim": 7, "decoder_attention_heads": 9, "encoder_layers": 1,
            "decoder_layers": 3, "max_source_positions": 11, "activation_function": "silu",
        },
    }),
    **{
        case: config
        for family in ("mbart", "m2m_100", "pegasus")
        for case, config in _variants(family, BART, BART_CHANGES).items() if not case.endswith("-scaled")
    },
}
CONFIGS = {**FIRST, **FIRST_ENCODERS, **ENCODERS, **DECODERS, **ENCODER_DECODERS}
# fmt: on


def own_model(config, seed=0, **kwargs):
    """Makes this library's model of a configuration, with random weights."""
    family = config["model_type"]
    kwargs |= {} if config.get("has_pooler", True) else {"pooler": None}
    return randomized(family, FAMILIES[family].make_model(config, **kwargs), seed)


def randomized(family, model, seed=0, scale=0.3):
    """Gives a model random weights, around 1 in the scales of norms and around 0 elsewhere.

    They are drawn tensor by tensor in the order of the checkpoint's names. So the numbers of recorded.json do not
    depend on the order in which the library creates its weights.
    """
    rng = np.random.default_rng(seed)
    tensors = without_copies(FAMILIES[family].make_tensors(model))
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        noise = rng.normal(size=tensor.shape, scale=scale)
        for weight, value in zip(tensor.weights, tensor.to_weights(noise), strict=True):
            weight.assign(value + 1.0 if weight.name in ("gamma", "scale") else value)
    return model


def torch_class(config):
    """Returns transformers' class for a configuration, a dict, and the options that make a model of it."""
    import transformers

    transformers.logging.disable_progress_bar()
    if "architectures" in config:
        (name,) = config["architectures"]
        options = {"add_pooling_layer": config["has_pooler"]} if name == "ViTModel" else {}
        return getattr(transformers, name), options
    is_seq2seq = config["model_type"] in ("t5", "marian") or config["model_type"] in ENCODER_DECODERS
    return transformers.AutoModelForSeq2SeqLM if is_seq2seq else transformers.AutoModelForCausalLM, {}


def torch_model(config, seed=0):
    """Makes transformers' model of a configuration, with random weights."""
    import torch
    import transformers

    kind, options = torch_class(config)
    named = {key: value for key, value in config.items() if key not in ("model_type", "has_pooler")}
    if "id2label" in named:
        named["id2label"] = {int(i): label for i, label in named["id2label"].items()}
        named["label2id"] = {label: i for i, label in named["id2label"].items()}
    torch.manual_seed(seed)
    made = transformers.AutoConfig.for_model(config["model_type"], attn_implementation="eager", **named)
    model = kind(made, **options) if "architectures" in config else kind.from_config(made)
    if config["model_type"].endswith("t5") and config.get("tie_word_embeddings") is False:
        # transformers 5 ties them all the same.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.all_tied_weights_keys.pop("lm_head.weight")
    with torch.no_grad():
        biases = [(name, buffer) for name, buffer in model.named_buffers() if name == "final_logits_bias"]
        for name, parameter in (*model.named_parameters(), *biases):
            if "embed_positions" in name:
                continue
            of_norm = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
            parameter.normal_(1.0 if of_norm else 0.0, 0.3)
    return model.eval()


def loaded_without_warnings(folder, config, caplog):
    """Returns the model that transformers loads from a folder; it must not warn, nor miss or pass over a tensor."""
    import transformers

    kind, options = torch_class(config)
    logging.getLogger("transformers").propagate = True
    caplog.clear()  # what this library said before
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        options |= {"output_loading_info": True, "attn_implementation": "eager"}
        model, found = kind.from_pretrained(folder, **options)
        transformers.GenerationConfig.from_model_config(model.config).validate()
    assert not any(found.values()), found
    tied = model.config.model_type.endswith("t5")  # transformers would tie each, and warns where one is not
    assert not [each for each in caplog.records if not (tied and "we will NOT tie" in each.message)]
    return model.eval()


def rows_of(seed=0, pad_id=0, lowest=4, end=VOCAB - 1):
    """Returns rows of ids of different lengths, padded on the right, and which of them are no padding."""
    ids = np.random.default_rng(seed).integers(lowest, end, (len(LENGTHS), max(LENGTHS)))
    ids = np.where(ids == pad_id, lowest + (pad_id == lowest), ids)  # a real token
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return np.where(real, ids, pad_id), real


def inputs_of(model, seed=0):
    """Returns the inputs of this library's model, those of transformers' model, and where the output is real.

    The latter is None where no position is padding. Where there are choices, each row has two texts.
    """
    if isinstance(model, VisionTransformer):
        shape = (3, *model.image_size, model.channels)
        images = np.random.default_rng(seed).normal(size=shape).astype("float32")
        return images, {"pixel_values": images.transpose(0, 3, 1, 2)}, None
    if isinstance(model, EncoderModel):
        ids, real = rows_of(seed, model.pad_id)
        own = model.embeddings.segments
        segments = np.random.default_rng(seed).integers(0, own.num_segments if own else 1, ids.shape)
        parts = ids, np.sort(segments) * real, real
        if type(model.head) is MultipleChoiceHead:
            parts = tuple(np.stack([x, x[::-1]], axis=1) for x in parts)
        ids, segments, real = parts
        there = {"input_ids": ids, "attention_mask": real.astype("int64")}
        if own:
            there["token_type_ids"] = segments
        return {"token_ids": ids, "segment_ids": segments}, there, real
    if isinstance(model, EncoderDecoder) and not model.reads_ids:
        target, real = rows_of(seed, model.pad_id, lowest=2, end=28)
        target[:, 0], length = model.bos_id, model.source.max_length
        shape = (len(target), length, model.source.convolutions[0].kernel.shape[1])
        frames = np.random.default_rng(seed).normal(size=shape).astype("float32")
        there = {"input_features": frames.transpose(0, 2, 1), "decoder_input_ids": target}
        return {"source": frames, "target": target}, there, real
    ids, real = rows_of(seed, model.pad_id, lowest=2, end=EOS)
    there = {"input_ids": ids, "attention_mask": real.astype("int64")}
    if not isinstance(model, EncoderDecoder):
        return ids, there, real
    target = np.concatenate([np.full((len(ids), 1), model.bos_id), ids[::-1, :-1]], axis=1)
    return {"source": ids, "target": target}, {**there, "decoder_input_ids": target}, real[::-1]


def own_outputs(model, inputs):
    """Returns the output of a model, its last states (in an encoder-decoder the source's), and its pooled vectors."""
    if isinstance(model, EncoderDecoder):
        memory = model.encode(inputs["source"])
        found = [model.decode(inputs["target"], memory), memory.states]
    elif isinstance(model, EncoderModel):
        flat = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items()}
        found = [model(inputs), model.encode(flat)]
        if model.head is None and model.pooler is not None:
            found.append(model.pooled(flat))
    elif isinstance(model, VisionTransformer):
        found = [model(inputs), model.encode(keras.ops.convert_to_tensor(inputs))]
    else:
        found = [model(inputs), model.hidden(inputs)]
    return [keras.ops.convert_to_numpy(x) for x in found]


def torch_outputs(model, inputs):
    """Returns the same of transformers' model."""
    import torch

    inputs = {name: torch.tensor(x.copy()) for name, x in inputs.items()}
    with torch.no_grad():
        found = model(**inputs, output_hidden_states=True)
        if "pixel_values" in inputs:
            states = model.base_model(**inputs).last_hidden_state
        else:
            states = found.get("encoder_last_hidden_state", found.get("hidden_states", [None])[-1])
    pooled = found.get("pooler_output")
    if "start_logits" in found:
        outputs = [torch.stack([found.start_logits, found.end_logits], dim=-1), states]
    elif "logits" in found:
        outputs = [found.logits, states]
    elif "pixel_values" in inputs:
        outputs = [states if pooled is None else pooled, states]
    else:
        outputs = [found.last_hidden_state, states, *([] if pooled is None else [pooled])]
    return [x.numpy() for x in outputs]


def difference(model, there, seed=0):
    """Returns the largest difference between the outputs of a model and of transformers' model, without padding."""
    inputs, inputs_there, real = inputs_of(model, seed)
    source_real = inputs_there.get("attention_mask")
    source_real = None if real is None or source_real is None else source_real.astype(bool)
    found, expected = own_outputs(model, inputs), torch_outputs(there, inputs_there)
    differences = []
    for here, other, where in zip(found, expected, (real, source_real, None)[: len(found)], strict=True):
        assert here.shape == other.shape
        flat = None if where is None else where.reshape(-1, where.shape[-1])
        if flat is not None and flat.shape == other.shape[:2]:
            here, other = here[flat], other[flat]
        assert np.ptp(other) > 0.05, "The outputs are nearly constant."
        differences.append(np.abs(here - other).max())
    return max(differences)


def own_texts(model, rows, strategy, limit, **options):
    """Returns what a model of this library generates for each row, up to its end."""
    found = model.generate(rows, strategy, limit, jit_compile=False, **options)
    tokens, lengths = (keras.ops.convert_to_numpy(part)[:, 0] for part in found[:2])
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def padded_on_the_left(rows, real):
    """Returns rows and which of their ids are no padding, as prompts of transformers are padded."""
    counts = (~real).sum(axis=1)
    return [np.stack([np.roll(row, n) for row, n in zip(x, counts, strict=True)]) for x in (rows, real)]


def torch_texts(model, rows, real, limit, ends, **options):
    """Returns what transformers generates for each row, up to its end, and by how much it beats the second best.

    A language model's prompts are padded on the left. With `num_beams` in `options`, the margin is that of the two best
    outputs; without, the smallest one of all steps.
    """
    import torch

    start = 1
    if not model.config.is_encoder_decoder:
        start = rows.shape[1]
        rows, real = padded_on_the_left(rows, real)
    given = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, **options}
    mask = torch.tensor(real.astype("int64"))
    found = model.generate(torch.tensor(rows), attention_mask=mask, max_new_tokens=limit, **given)
    best = "num_beams" in options
    texts = []
    for row, ids in enumerate(found.sequences[:: 2 if best else 1, start:].tolist()):
        end = next((i for i, token in enumerate(ids, 1) if token in ends), limit)
        if best:
            first, second = found.sequences_scores[2 * row : 2 * row + 2]
        else:
            first, second = torch.stack(found.scores, dim=1)[row, :end].topk(2).values.T
        texts.append((ids[:end], (first - second).min().item()))
    return texts


def assert_same_weights(model, expected):
    """Two of this library's models hold the same values in the same order, bit for bit."""
    for weight, other in zip(model.weights, expected.weights, strict=True):
        assert (weight.name, weight.dtype) == (other.name, other.dtype)
        found, value = (keras.ops.convert_to_numpy(each) for each in (weight, other))
        np.testing.assert_array_equal(found, value, err_msg=weight.path)


def assert_same_tensors(family, model, expected):
    """Two models have the same checkpoint. Keras lists the weights of handed-in layers in another order."""
    found, expected = map(FAMILIES[family].make_tensors, (model, expected))
    for tensor, other in zip(found, expected, strict=True):
        assert tensor.name == other.name
        np.testing.assert_array_equal(tensor.value(), other.value())


def change_config(folder, **changes):
    """Changes keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder, change):
    """Replaces the tensors of model.safetensors by what a function returns for them."""
    tensors = {name: array.copy() for name, array in load_file(folder / WEIGHTS).items()}
    changed = {name: np.ascontiguousarray(array) for name, array in change(tensors).items()}
    save_file(changed, folder / WEIGHTS)
