"""Small models of each family, of this library and of transformers, with random weights."""

import keras
import numpy as np
import pytest

from keras_transformer.huggingface import FAMILIES, to_huggingface
from keras_transformer.huggingface.tensors import without_copies
from keras_transformer.models import EncoderDecoder

VOCAB, EOS = 31, 29
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": VOCAB,
    "n_positions": 23,
    "n_embd": 15,
    "n_layer": 2,
    "n_head": 5,
    "bos_token_id": 30,
    "eos_token_id": EOS,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 18,
    "intermediate_size": 13,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 30,
    "eos_token_id": EOS,
}
T5 = {
    "model_type": "t5",
    "vocab_size": VOCAB,
    "d_model": 15,
    "d_kv": 7,
    "d_ff": 19,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "decoder_start_token_id": 0,
}
MARIAN = {
    "model_type": "marian",
    "vocab_size": VOCAB,
    "d_model": 18,
    "encoder_layers": 2,
    "encoder_ffn_dim": 13,
    "encoder_attention_heads": 3,
    "decoder_layers": 1,
    "decoder_ffn_dim": 13,
    "decoder_attention_heads": 3,
    "activation_function": "silu",
    "scale_embedding": True,
    "max_position_embeddings": 64,
    "pad_token_id": 30,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "decoder_start_token_id": 30,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
CONFIGS = {
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 19, "layer_norm_epsilon": 1e-3},
    "gpt2-relu-unscaled": {**GPT2, "activation_function": "relu", "scale_attn_weights": False},
    "gpt2-gelu": {**GPT2, "activation_function": "gelu"},
    "llama": LLAMA,
    "llama-tied": {
        **LLAMA,
        "tie_word_embeddings": True,
        "num_key_value_heads": None,
        "num_attention_heads": 3,
        "head_dim": None,
    },
    "llama-one-key": {
        **LLAMA,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "llama-linear": {**LLAMA, "rope_parameters": LINEAR},
    "llama-llama3": {**LLAMA, "rope_parameters": LLAMA3},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    "t5": T5,
    "t5-1.1": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5-tied-unscaled": {**T5, "feed_forward_proj": "gated-silu", "scale_decoder_outputs": False},
    "marian": MARIAN,
    "marian-two-vocabularies": {
        **MARIAN,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 37,
        "scale_embedding": False,
        "activation_function": "gelu",
    },
    "marian-odd": {
        **MARIAN,
        "d_model": 15,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "activation_function": "relu",
    },
}
SEQ2SEQ = ("t5", "marian", "bart", "mbart", "m2m_100", "pegasus")


def inputs_of(model, ids):
    """Returns the inputs of a model of any family."""
    return {"source": ids, "target": ids[:, ::-1]} if isinstance(model, EncoderDecoder) else ids


def auto_class(model_type):
    """Returns the class of transformers that loads a model of this type."""
    import transformers

    return transformers.AutoModelForSeq2SeqLM if model_type in SEQ2SEQ else transformers.AutoModelForCausalLM


def ours(config, seed=0, **kwargs):
    """Makes this library's model of a configuration, with random weights."""
    family = config["model_type"]
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


def theirs(config, seed=0):
    """Makes transformers' model of a configuration, with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = {"attn_implementation": "eager", **config}
    model_type = config.pop("model_type")
    model = auto_class(model_type).from_config(transformers.AutoConfig.for_model(model_type, **config))
    if model_type == "t5" and config.get("tie_word_embeddings") is False:
        # transformers 5 ties them all the same.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.all_tied_weights_keys.pop("lm_head.weight")
    with torch.no_grad():
        biases = [(name, buffer) for name, buffer in model.named_buffers() if name == "final_logits_bias"]
        for name, parameter in (*model.named_parameters(), *biases):
            if "embed_positions" in name:
                continue
            of_norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
            parameter.normal_(1.0 if of_norm else 0.0, 0.3)
    return model.eval()


def assert_same_weights(model, expected):
    """Two of this library's models hold the same values in the same order, bit for bit."""
    for weight, other in zip(model.weights, expected.weights, strict=True):
        assert (weight.name, weight.dtype) == (other.name, other.dtype)
        found, value = (keras.ops.convert_to_numpy(each) for each in (weight, other))
        np.testing.assert_array_equal(found, value, err_msg=weight.path)


def assert_same_texts(compared):
    """Compares pairs of texts `(this library's, transformers', margin)` whose margin over the second best is clear."""
    clear = [(text, expected) for text, expected, margin in compared if margin > 1e-3]
    assert len(clear) > len(compared) * 0.8
    for text, expected in clear:
        assert text == expected
    lengths = [len(text) for text, _ in clear]
    print(f"{len(clear)} of {len(compared)} texts, of {min(lengths)} to {max(lengths)} tokens")
    assert len(set(lengths)) > 1


def assert_refused(model, expected, folder, match="must be made of the parts of one family", family=None):
    """A model with a part that no family has, or not this one, is not written, and the part is named."""
    with pytest.raises(ValueError, match=match) as caught:
        to_huggingface(model, folder / "new", family=family)
    assert expected in str(caught.value)
    assert list(folder.iterdir()) == []
