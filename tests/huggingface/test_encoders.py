"""BERT's relatives with each head: the same numbers and files as transformers on PyTorch."""

import logging
import warnings

import keras
import numpy as np
import pytest
from contracts import slow_but
from families import assert_same_weights, randomized
from test_bert import NAMES

from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.models import ClassificationHead, EncoderModel, MultipleChoiceHead

VOCAB, LENGTHS = 31, (11, 7, 2, 5)
# All of it is rounding. The largest difference found was 2.1e-5, in the states of "modernbert-mean" with seed 2.
# There each side is 6e-6 to 1.2e-5 away from its own float64. In float64 the two differ by 3.1e-6, and by 2e-7 once
# transformers also computes its softmax and its rotary angles in float64, which it does in float32 whatever the dtype.
TOLERANCE = 2e-5
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 19,
    "max_position_embeddings": 17,
    "initializer_range": 0.3,
}
FAMILY_SIZES = {
    "bert": {**SIZES, "type_vocab_size": 3},
    "roberta": {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 3},
    "mpnet": SIZES,
    "distilbert": {
        "vocab_size": VOCAB,
        "dim": 15,
        "n_layers": 2,
        "n_heads": 3,
        "hidden_dim": 19,
        "max_position_embeddings": 17,
    },
    "electra": {**SIZES, "embedding_size": 7, "type_vocab_size": 3},
    "modernbert": {
        "vocab_size": VOCAB,
        "hidden_size": 18,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "intermediate_size": 19,
        "local_attention": 4,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}
CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "mpnet": "MPNet",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "modernbert": "ModernBert",
}
HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": {**NAMES, "classifier_dropout": 0.2},
    "ForMultipleChoice": {},
    "ForTokenClassification": {**NAMES},
    "ForQuestionAnswering": {},
}
CONFIGS = {
    f"{family}-{head}": {
        "model_type": family,
        **sizes,
        **{
            key: value for key, value in HEADS[head].items() if key != "classifier_dropout" or "rob" in family
        },
        "architectures": [CLASSES[family] + head],
    }
    for family, sizes in FAMILY_SIZES.items()
    for head in HEADS
    if CLASSES[family] + head in FAMILIES[family].architectures
    and (family != "bert" or head == "ForQuestionAnswering")  # test_bert.py has the other heads
}
CONFIGS["electra-wide"] = {
    **CONFIGS["electra-ForSequenceClassification"],
    "embedding_size": 15,
    "hidden_act": "relu",
}
CONFIGS["roberta-odd"] = {
    **CONFIGS["roberta-ForMaskedLM"],
    "hidden_act": "gelu_new",
    "num_attention_heads": 1,
}
CONFIGS["mpnet-one-layer"] = {**CONFIGS["mpnet-Model"], "num_hidden_layers": 1, "num_attention_heads": 3}
CONFIGS["modernbert-mean"] = {
    **CONFIGS["modernbert-ForSequenceClassification"],
    "classifier_pooling": "mean",
    "classifier_bias": True,
    "classifier_activation": "relu",
    "num_attention_heads": 1,
    "local_attention": 2,
}
CONFIGS["modernbert-biases"] = {
    **CONFIGS["modernbert-ForMaskedLM"],
    "norm_bias": True,
    "attention_bias": True,
    "mlp_bias": True,
    "hidden_activation": "silu",
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
    "layer_types": [
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention",
        "full_attention",
    ],
}
CONFIGS["distilbert-relu"] = {**CONFIGS["distilbert-ForMaskedLM"], "activation": "relu", "n_heads": 1}
EACH = pytest.mark.parametrize("case", CONFIGS)


def ours(config, seed=0, **kwargs):
    return randomized(config["model_type"], FAMILIES[config["model_type"]].make_model(config, **kwargs), seed)


def theirs(config, seed=0):
    """transformers' model of a configuration, with random weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    asked = {key: value for key, value in config.items() if key != "model_type"}
    if "id2label" in asked:
        asked["id2label"] = {int(i): label for i, label in asked["id2label"].items()}
        asked["label2id"] = {label: i for i, label in asked["id2label"].items()}
    made = transformers.AutoConfig.for_model(config["model_type"], **asked, attn_implementation="eager")
    model = getattr(transformers, config["architectures"][0])(made)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if of_norm else 0.0, 0.3)
    return model.eval()


def rows(model, seed=0):
    """Rows of different lengths, padded, with segments; of several texts where there are choices."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, VOCAB, (len(LENGTHS), max(LENGTHS)))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    ids = np.where(real, ids, model.pad_id)
    segments = np.sort(rng.integers(0, max(model.num_segments, 1), ids.shape)) * real
    if type(model.head) is MultipleChoiceHead:
        return tuple(np.stack([x, x[::-1]], axis=1) for x in (ids, segments, real))
    return ids, segments, real


def difference(model, their_model, seed=0):
    """The largest difference between their outputs at real positions, and between the last hidden states."""
    import torch

    ids, segments, real = rows(model, seed)
    arguments = {"input_ids": ids, "attention_mask": real.astype("int64")}
    if model.num_segments:
        arguments["token_type_ids"] = segments
    with torch.no_grad():
        given = their_model(**{k: torch.tensor(v) for k, v in arguments.items()}, output_hidden_states=True)
    found = keras.ops.convert_to_numpy(model({"token_ids": ids, "segment_ids": segments}))
    flat = [x.reshape(-1, x.shape[-1]) for x in (ids, segments)]
    states = keras.ops.convert_to_numpy(
        model.encode(dict(zip(("token_ids", "segment_ids"), flat, strict=True)))
    )
    real_rows = real.reshape(states.shape[:2])
    compared = [(states[real_rows], given.hidden_states[-1].numpy()[real_rows])]
    if model.head is None:
        if model.pooler is not None:
            pooled = keras.ops.convert_to_numpy(model.pooled({"token_ids": ids, "segment_ids": segments}))
            compared.append((pooled, given.pooler_output.numpy()))
    elif "start_logits" in given:
        both = np.stack([given.start_logits.numpy(), given.end_logits.numpy()], axis=-1)
        compared.append((found[real], both[real]))
    else:
        where = slice(None) if isinstance(model.head, (ClassificationHead, MultipleChoiceHead)) else real
        compared.append((found[where], given.logits.numpy()[where]))
    assert all(np.ptp(expected) > 0.05 for _, expected in compared)
    return max(np.abs(here - there).max() for here, there in compared)


def quietly_loaded(folder, caplog, architecture):
    """What transformers loads, if it has nothing to say."""
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").propagate = True
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        kind = getattr(transformers, architecture)
        model, found = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(found.values()), found
    assert not caplog.records
    return model.eval()


@EACH
def test_outputs_are_those_of_transformers(case, tmp_path):
    their_model = theirs(CONFIGS[case])
    their_model.save_pretrained(tmp_path)
    assert difference(from_huggingface(tmp_path), their_model) <= TOLERANCE


@EACH
def test_a_checkpoint_comes_back_unchanged(case, tmp_path, caplog):
    their_model = theirs(CONFIGS[case])
    their_model.save_pretrained(tmp_path / "theirs")
    model_type = CONFIGS[case]["model_type"]
    to_huggingface(from_huggingface(tmp_path / "theirs"), tmp_path / "ours", 2000, family=model_type)
    again = quietly_loaded(tmp_path / "ours", caplog, CONFIGS[case]["architectures"][0])
    found, expected = again.state_dict(), their_model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize(
    "case", slow_but(("electra-ForMaskedLM", "mpnet-ForSequenceClassification"), CONFIGS)
)
def test_own_models_come_back_unchanged(case, tmp_path):
    model = ours(CONFIGS[case])
    family = FAMILIES[CONFIGS[case]["model_type"]]
    to_huggingface(model, tmp_path / "new", family=family.model_type)
    again = from_huggingface(tmp_path / "new")
    assert isinstance(again, EncoderModel)
    assert_same_weights(again, model)
    assert family.make_config(again) == family.make_config(model)
