"""BERT with each head: the same numbers and files as transformers on PyTorch, and what is refused."""

import json
import logging
import shutil
import warnings

import keras
import numpy as np
import pytest
from families import assert_same_weights, randomized
from safetensors.numpy import load_file, save_file

from keras_transformer import layers
from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    TaggingHead,
)

VOCAB, LENGTHS, TOLERANCE = 31, (11, 7, 2, 5), 2e-4
BERT = {
    "model_type": "bert",
    "vocab_size": VOCAB,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 19,
    "max_position_embeddings": 13,
    "type_vocab_size": 3,
}
NAMES = {"id2label": {"0": "sad", "1": "glad", "2": "neither"}}
CONFIGS = {
    "model": {"architectures": ["BertModel"]},
    "masked": {"architectures": ["BertForMaskedLM"]},
    "masked-tanh": {
        "architectures": ["BertForMaskedLM"],
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
        "pad_token_id": 30,
        "type_vocab_size": 1,
    },
    "classes": {"architectures": ["BertForSequenceClassification"]},
    "number": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
    "named": {"architectures": ["BertForSequenceClassification"], **NAMES, "hidden_dropout_prob": 0.3},
    "choice": {"architectures": ["BertForMultipleChoice"], "classifier_dropout": 0.2},
    "tags": {"architectures": ["BertForTokenClassification"], **NAMES, "hidden_act": "relu"},
}
CONFIGS = {name: {**BERT, **config} for name, config in CONFIGS.items()}
EACH = pytest.mark.parametrize("case", CONFIGS)


def ours(config, seed=0, **kwargs):
    return randomized("bert", FAMILIES["bert"].make_model(config, **kwargs), seed)


def theirs(config, seed=0):
    """transformers' model of a configuration, with random weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    said = {key: value for key, value in config.items() if key != "model_type"}
    if "id2label" in said:
        said["id2label"] = {int(i): label for i, label in said["id2label"].items()}
        said["label2id"] = {label: i for i, label in said["id2label"].items()}
    asked = transformers.BertConfig(**said, attn_implementation="eager")
    model = getattr(transformers, config["architectures"][0])(asked)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.3)
    return model.eval()


def rows(model, seed=0):
    """Rows of different lengths, padded, with segments; of several texts where there are choices."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, VOCAB - 1, (len(LENGTHS), max(LENGTHS)))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    ids = np.where(real, ids, model.pad_id)
    segments = np.sort(rng.integers(0, model.num_segments, ids.shape)) * real
    if type(model.head) is MultipleChoiceHead:
        return tuple(np.stack([x, x[::-1]], axis=1) for x in (ids, segments, real))
    return ids, segments, real


def difference(model, their_model, seed=0):
    """The largest difference between what they give, at real positions, hidden states and pooled vectors too."""
    torch = pytest.importorskip("torch")
    ids, segments, real = rows(model, seed)
    arguments = {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.astype("int64")}
    with torch.no_grad():
        given = their_model(
            **{name: torch.tensor(x) for name, x in arguments.items()}, output_hidden_states=True
        )
    inputs = {"token_ids": ids, "segment_ids": segments}
    found = keras.ops.convert_to_numpy(model(inputs))
    of_tokens = model.head is None or type(model.head) in (MaskedLanguageHead, TaggingHead)
    where = real if of_tokens else slice(None)
    flat = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items()}
    states = keras.ops.convert_to_numpy(model.encode(flat))
    compared = [
        (found[where], (given.last_hidden_state if model.head is None else given.logits).numpy()[where]),
        (
            states[real.reshape(states.shape[:2])],
            given.hidden_states[-1].numpy()[real.reshape(states.shape[:2])],
        ),
    ]
    if model.head is None:
        compared.append((keras.ops.convert_to_numpy(model.pooled(flat)), given.pooler_output.numpy()))
    assert all(np.ptp(expected) > 0.05 for _, expected in compared)
    return max(np.abs(found - expected).max() for found, expected in compared)


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


@pytest.mark.parametrize("seed", [0, 1, 2])
@EACH
def test_logits_and_states_are_theirs(case, seed, tmp_path):
    their_model = theirs(CONFIGS[case], seed)
    their_model.save_pretrained(tmp_path)
    found = difference(from_huggingface(tmp_path), their_model, seed)
    assert found <= TOLERANCE
    print(f"{case}: {found:.1e}")


@EACH
def test_what_comes_in_goes_out_unchanged(case, tmp_path, caplog):
    their_model = theirs(CONFIGS[case])
    their_model.save_pretrained(tmp_path / "theirs")
    to_huggingface(from_huggingface(tmp_path / "theirs"), tmp_path / "ours", 2000)
    again = quietly_loaded(tmp_path / "ours", caplog, CONFIGS[case]["architectures"][0])
    found, expected = again.state_dict(), their_model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)
    saved, expected = again.config.to_dict(), their_model.config.to_dict()
    differing = {key for key in saved if saved[key] != expected.get(key)} - {"_name_or_path", "dtype"}
    assert differing <= {"classifier_dropout"}  # said where they leave it open


@EACH
def test_our_own_models_come_back_unchanged(case, tmp_path, caplog):
    model = ours(CONFIGS[case])
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    assert_same_weights(again, model)
    assert FAMILIES["bert"].make_config(again) == FAMILIES["bert"].make_config(model)
    their_model = quietly_loaded(tmp_path / "new", caplog, CONFIGS[case]["architectures"][0])
    assert difference(model, their_model) <= TOLERANCE


def test_a_model_of_plain_arguments_is_a_bert(tmp_path):
    encoder = layers.Encoder(2, 3, 7, 0.2, "gelu", layer_norm_epsilon=1e-6)
    model = EncoderModel(
        VOCAB, 12, encoder, layers.LearnedPositions(13), norm=layers.LayerNormalization(), dropout=0.2,
        pooler=Pooler(), head=ClassificationHead(3, labels=["a", "b", "c"]), cls_id=5, sep_id=6,
    )  # fmt: skip
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    assert_same_weights(again, model)
    assert again.head.labels == ["a", "b", "c"]
    assert (again.pad_id, again.cls_id, again.sep_id) == (0, 5, 6)
    assert (again.dropout, again.head.dropout) == (0.2, 0.1)


# What is read.


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A masked language model, and a folder that it was written to."""
    model, folder = ours(CONFIGS["masked"]), tmp_path_factory.mktemp("masked") / "new"
    to_huggingface(model, folder)
    return model, folder


@pytest.fixture
def folder(masked, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(masked[1], tmp_path / "new")


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewritten(folder, change):
    tensors = {name: array.copy() for name, array in load_file(folder / "model.safetensors").items()}
    changed = {name: np.ascontiguousarray(array) for name, array in change(tensors).items()}
    save_file(changed, folder / "model.safetensors")


def test_what_the_published_checkpoints_hold_besides_is_passed_over(masked, folder):
    """Old names of the norms, a pooler and a head for the next sentence beside that of the masks, counted positions."""

    def old(tensors):
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): a
            for name, a in tensors.items()
        }
        assert any(name.endswith("gamma") for name in tensors)
        more = {
            "bert.pooler.dense.weight": np.ones((15, 15), "float32"),
            "bert.pooler.dense.bias": np.ones(15, "float32"),
            "cls.seq_relationship.weight": np.ones((2, 15), "float32"),
            "cls.seq_relationship.bias": np.ones(2, "float32"),
            "bert.embeddings.position_ids": np.arange(13)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }
        return {**tensors, **more}

    rewritten(folder, old)
    assert_same_weights(from_huggingface(folder), masked[0])


def test_a_bare_model_reads_names_with_and_without_its_own(tmp_path):
    model = ours(CONFIGS["model"])
    to_huggingface(model, tmp_path / "new")
    rewritten(tmp_path / "new", lambda t: {name.removeprefix("bert."): a for name, a in t.items()})
    assert_same_weights(from_huggingface(tmp_path / "new"), model)
    configured(tmp_path / "new", architectures=None)
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


def test_an_imported_checkpoint_gets_another_head(folder):
    pretrained = from_huggingface(folder, cls_id=7, sep_id=8)
    model = pretrained.with_head(ClassificationHead(3), Pooler())
    ids = rows(model)[0]
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m.encode(ids)) for m in (model, pretrained)))
    assert model(ids).shape == (len(LENGTHS), 3)
    assert (model.cls_id, model.sep_id) == (7, 8)


def test_numbers_of_labels_are_read_where_there_are_no_names():
    config = {**CONFIGS["classes"], "num_labels": 4}
    assert ours(config).head.num_classes == 4
    assert ours(CONFIGS["classes"]).head.num_classes == 2
    assert ours(CONFIGS["number"]).head.labels is None
    assert ours(CONFIGS["tags"]).head.labels == ["sad", "glad", "neither"]


# What is refused.


def test_tensors_that_do_not_fit_are_named(folder):
    configured(folder, architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder)
    for problem in ("'classifier.weight' is missing", "'bert.pooler.dense.weight' is missing"):
        assert problem in str(caught.value)
    assert "'cls.predictions.bias' is left over" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_decoder": True},
        {"add_cross_attention": True},
        {"position_embedding_type": "relative_key"},
        {"pruned_heads": {"0": [1]}},
        {"tie_word_embeddings": False},
        {"architectures": ["BertForNextSentencePrediction"]},
        {"hidden_act": "mish"},
        {"num_attention_heads": 4},
        {"type_vocab_size": 0},
        {"quantization_config": {"bits": 4}},
        {"architectures": ["BertForSequenceClassification"], "id2label": {"1": "a", "2": "b"}},
    ],
    ids=str,
)
def test_configurations_without_a_part_are_refused(folder, changes):
    configured(folder, **changes)
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder)
    key, value = list(changes.items())[-1]
    assert key in str(caught.value) and str(value) in str(caught.value)


def bert_like(**changes):
    """A model of BERT's parts, but for those given."""
    attention = {
        k: changes.pop(k) for k in ("positions", "use_bias", "scale", "query_key_norm") if k in changes
    }
    normalize_first = changes.pop("normalize_first", False)
    feed_forward = changes.pop("feed_forward", lambda: layers.FeedForward(7))
    encoder = [
        layers.EncoderLayer(
            attention=layers.MultiHeadAttention(3, 4, **attention),
            feed_forward=feed_forward(),
            dropout=0.0,
            normalize_first=normalize_first,
        )
        for _ in range(2)
    ]
    arguments = {
        "positions": changes.pop("embedded", layers.LearnedPositions(5)),
        "norm": layers.LayerNormalization(epsilon=1e-6),
        "head": MaskedLanguageHead("relu", 1e-6),
        **changes,
    }
    return EncoderModel(11, 12, layers.Encoder(encoder), **arguments)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"embedded": None}, "positions=None"),
        ({"num_segments": 0}, "segments=None"),
        ({"norm": layers.RMSNormalization()}, "norm='RMSNormalization'"),
        ({"norm": layers.LayerNormalization(epsilon=1e-3)}, "epsilon=0.001"),
        ({"norm": layers.LayerNormalization(epsilon=1e-6, center=False)}, "norm.center=False"),
        ({"feed_forward": lambda: layers.GatedFeedForward(7)}, "feed_forward=<GatedFeedForward"),
        ({"normalize_first": True}, "normalize_first=True"),
        ({"positions": layers.ALiBi()}, "attention_positions=<ALiBi"),
        ({"use_bias": False}, "attention_bias=False"),
        ({"scale": 0.3}, "scale=0.3"),
        ({"query_key_norm": "rms"}, "query_key_norm='rms'"),
        ({"head": MaskedLanguageHead("gelu", 1e-6)}, "head.activation='gelu'"),
        ({"head": MaskedLanguageHead("relu")}, "head.layer_norm_epsilon=1e-12"),
        ({"head": None}, "pooler=None"),
        ({"head": ClassificationHead(2)}, "pooler=None"),
        ({"pooler": Pooler()}, "pooler=<Pooler"),
        ({"head": Pooler()}, "head=<Pooler"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_parts_that_bert_does_not_have_are_named(changes, expected, tmp_path):
    with pytest.raises(ValueError, match="must be made of the parts of one family") as caught:
        to_huggingface(bert_like(**changes), tmp_path / "new", family="bert")
    assert expected in str(caught.value)


def test_a_model_of_its_parts_is_written(tmp_path):
    """What the test above changes is all that is wrong with its models."""
    model = randomized("bert", bert_like())
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    # Keras lists the weights of handed-in layers in another order.
    found, expected = map(FAMILIES["bert"].make_tensors, (again, model))
    for tensor, other in zip(found, expected, strict=True):
        assert tensor.name == other.name
        np.testing.assert_array_equal(tensor.value(), other.value())


# Tokenizers.

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "é", "e", ",", "The"]
TEXTS = ["The cats, the cat", "é CAT", ""]


@pytest.fixture(params=["whole", "lines"])
def with_tokenizer(request, folder):
    """A function that adds a tokenizer's files in either form, and gives theirs."""

    def add(**arguments):
        transformers = pytest.importorskip("transformers")
        if request.param == "whole":
            their = transformers.BertTokenizer(vocab={p: i for i, p in enumerate(PIECES)}, **arguments)
            their.save_pretrained(folder)
            assert (folder / "tokenizer.json").is_file()
        else:
            (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(arguments))
            their = transformers.BertTokenizer.from_pretrained(folder)
        return folder, their

    return add


@pytest.mark.parametrize("arguments", [{}, {"do_lower_case": False}, {"strip_accents": False}], ids=str)
def test_a_folders_tokenizer_gives_their_ids(with_tokenizer, arguments):
    folder, their = with_tokenizer(**arguments)
    (tokenizer,) = tokenizers_from_huggingface(folder)
    expected = their(TEXTS, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    assert tokenizer.pieces(range(len(PIECES))) == PIECES


def test_tokenizers_that_ours_is_not_are_refused(with_tokenizer):
    folder, _ = with_tokenizer(tokenize_chinese_chars=False)
    with pytest.raises(ValueError, match=r"tokenize_chinese_chars=False|handle_chinese_chars=False"):
        tokenizers_from_huggingface(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole["model"].update(type="BPE"), "type='BPE'"),
        (lambda whole: whole["model"].update(unk_token="<unk>"), "unk_token='<unk>'"),
        (lambda whole: whole["model"]["vocab"].update(dog=99), "ids from 0 on"),
        (lambda whole: whole["model"].update(vocab=None), "ids from 0 on"),
        (lambda whole: whole.update(normalizer=None), "type='none'"),
        (lambda whole: whole.update(pre_tokenizer={"type": "Whitespace"}), "type='Whitespace'"),
        (lambda whole: whole["added_tokens"].append({"id": 12, "content": "<x>"}), "'<x>'"),
    ],
)
def test_files_that_ask_for_more_are_refused(folder, change, message):
    transformers = pytest.importorskip("transformers")
    transformers.BertTokenizer(vocab={p: i for i, p in enumerate(PIECES)}).save_pretrained(folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    change(whole)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=message):
        tokenizers_from_huggingface(folder)


def test_a_folder_without_a_tokenizer_says_so(folder):
    with pytest.raises(ValueError, match=r"vocab\.txt"):
        tokenizers_from_huggingface(shutil.copytree(folder, folder.with_name("copy")))


CLASSES = {"architectures": ["BertForSequenceClassification"]}


@pytest.mark.parametrize(
    "said",
    [
        {"problem_type": "multi_label_classification", "id2label": {"0": "a", "1": "b", "2": "c"}},
        {"problem_type": "multi_label_classification", "num_labels": 3},
        {"problem_type": "regression", "num_labels": 3},
    ],
)
def test_labels_that_do_not_exclude_one_another_are_refused(said):
    with pytest.raises(ValueError, match=f"`problem_type` .*={said['problem_type']!r}, with 3 labels"):
        ours({**BERT, **CLASSES, **said})


@pytest.mark.parametrize(("problem", "count"), [("regression", 1), ("single_label_classification", 2)])
def test_a_number_and_one_of_several_classes_are_read(problem, count):
    model = ours({**BERT, **CLASSES, "problem_type": problem, "num_labels": count})
    assert model.head.num_classes == count


def test_labels_may_have_one_name_but_must_be_str(tmp_path):
    model = ours({**BERT, **CLASSES, "id2label": {"0": "crane", "1": "heron", "2": "crane"}})
    to_huggingface(model, tmp_path / "new")
    said = json.loads((tmp_path / "new/config.json").read_text())
    assert said["id2label"] == {"0": "crane", "1": "heron", "2": "crane"}
    assert said["label2id"] == {"crane": 2, "heron": 1}
    with pytest.raises(ValueError, match=r"id2label=\[0, 'a'\]"):
        ours({**BERT, **CLASSES, "id2label": {"0": 0, "1": "a"}})
