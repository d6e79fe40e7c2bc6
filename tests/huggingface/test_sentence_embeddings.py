"""Folders of sentence-transformers: the same vectors, and what is refused."""

import json
import logging

import numpy as np
import pytest
from contracts import refuses
from families import BERT, own_model
from pieces import sentence_modules
from safetensors.numpy import save_file

from keras_transformer.cli.convert import convert, convert_back
from keras_transformer.execution.int8 import OneProduct
from keras_transformer.huggingface import (
    embedder_files,
    embedder_options,
    from_huggingface,
    to_huggingface,
    with_dense_modules,
)
from keras_transformer.huggingface.checkpoint_files import write_files
from keras_transformer.keras_internals import sublayers
from keras_transformer.models import ProjectedPooler, TaggingHead
from keras_transformer.serving import Embedder, load

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "e", ",", "a", "dog", ":"]
TEXTS = ["The cats, the cat", "a dog", "the the the cat a dog a dog a cat", ""]


MEAN = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


@pytest.mark.parametrize(
    ("mode", "normalize", "prompt"), [("mean", True, None), ("cls", False, None), ("mean", False, "query")]
)
@pytest.mark.parametrize("kind", ["Bert", "MPNet"])
def test_vectors_are_those_of_sentence_transformers(kind, mode, normalize, prompt, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    marks = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"} if kind == "MPNet" else {}
    pieces = [marks.get(piece, piece) for piece in PIECES]
    if kind == "MPNet":
        pieces[0], pieces[1] = pieces[1], pieces[0]  # its padding has the id 1
    sizes = {"vocab_size": 13, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    torch.manual_seed(0)
    sizes |= {"intermediate_size": 7, "max_position_embeddings": 20, "initializer_range": 0.3}
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
    tokenizer = getattr(transformers, f"{kind}Tokenizer")(vocab={piece: i for i, piece in enumerate(pieces)})
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    modules = [
        parts.Transformer(str(tmp_path / "model"), max_seq_length=9),
        parts.Pooling(12, pooling_mode=mode),
    ]
    modules += [parts.Normalize()] if normalize else []
    prompts = {"query": "dog: "} if prompt else {}
    options = {"prompts": prompts, "default_prompt_name": prompt, "device": "cpu"}
    expected = library.SentenceTransformer(modules=modules, **options)
    expected.save(str(tmp_path / "saved"))
    (tmp_path / "saved" / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    embedder = convert(tmp_path / "saved", tmp_path / "own")
    with pytest.warns(UserWarning, match="longer than"):
        found = embedder.embed(TEXTS)
    np.testing.assert_allclose(found, expected.encode(TEXTS), atol=1e-5)
    again = load(tmp_path / "own")
    assert isinstance(again, Embedder)
    assert again.describe() == embedder.describe()
    assert (again.normalize, again.prompt) == (normalize, prompts.get(prompt, ""))
    convert_back(tmp_path / "own", tmp_path / "back")
    back = library.SentenceTransformer(str(tmp_path / "back"), device="cpu")
    np.testing.assert_allclose(back.encode(TEXTS), expected.encode(TEXTS), atol=1e-6)


def test_options_of_an_older_folder(tmp_path):
    folder = sentence_modules(tmp_path / "new", MEAN, prompts={"query": "q: "})
    options = {"pooling": "mean", "normalize": True, "prompt": "", "max_source_length": 9}
    assert embedder_options(folder) == options
    assert embedder_options(folder, "query") == {**options, "prompt": "q: "}
    first = sentence_modules(tmp_path / "first", {"pooling_mode_cls_token": True}, ("Transformer", "Pooling"))
    assert embedder_options(first) == {**options, "pooling": "first", "normalize": False}
    highest = sentence_modules(tmp_path / "max", {"pooling_mode_max_tokens": True})
    assert embedder_options(highest)["pooling"] == "max"


TWO = ("Transformer", "Pooling")
QUERY = {"default_prompt_name": "q", "prompts": {"q": "q: "}}


@pytest.mark.parametrize(
    ("pooling", "modules", "config", "message"),
    [
        ({"pooling_mode": "weightedmean"}, TWO, {}, "Received: poolings=\\['weightedmean'\\]"),
        ({**MEAN, "pooling_mode_max_tokens": True}, TWO, {}, "Received: poolings=\\['mean', 'max'\\]"),
        (MEAN, (*TWO, "CNN"), {}, "CNN"),
        (MEAN, ("Transformer", "Dense", "Pooling"), {}, "Dense"),
        ({**MEAN, "temperature": 0.5}, TWO, {}, "temperature=0.5"),
        (MEAN, TWO, {"truncate_dim": 8}, "truncate_dim=8"),
        (MEAN, TWO, {"default_prompt_name": "query"}, "prompt_name='query'"),
        ({**MEAN, "include_prompt": False}, TWO, QUERY, "include_prompt=False"),
    ],
)
def test_other_folders_are_refused(pooling, modules, config, message, tmp_path):
    refuses(message, embedder_options, sentence_modules(tmp_path / "new", pooling, modules, **config))


@pytest.mark.parametrize(
    ("tokenizer", "lowers"),
    [({"do_lower_case": True}, True), ({}, True), ({"do_lower_case": False}, False), (None, False)],
)
def test_lower_case_is_an_option_of_the_tokenizer_alone(tokenizer, lowers, tmp_path):
    folder = sentence_modules(tmp_path / "new", MEAN)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    if tokenizer is not None:
        (folder / "vocab.txt").write_text("\n".join(PIECES))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if lowers:
        assert embedder_options(folder)["max_source_length"] == 9
        return
    refuses(r"`do_lower_case` of sentence_bert_config\.json must be False", embedder_options, folder)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, ""),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity", "version": "5"}}, ""),
        ({"sentence_transformers": {"activation_fn": "nn.Sigmoid"}}, "nn.Sigmoid, which is not computed"),
        ({"sbert_ce_default_activation_function": "nn.Sigmoid"}, "a score is the logit"),
        ({}, "config.json names no activation, which means a sigmoid"),
    ],
)
def test_an_activation_of_the_score_is_a_warning(config, named, tmp_path, caplog):
    classes = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "score"}}
    config = {**BERT, "num_hidden_layers": 1, **classes, **config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": np.zeros(1, "float32")}, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="'a' is left over"):
        from_huggingface(tmp_path)
    assert named in caplog.text
    assert bool(named) == bool(caplog.text)


BARE = {**BERT, "architectures": ["BertModel"]}


@pytest.fixture(scope="module")
def bert():
    """A model that is not changed."""
    return own_model({**BARE, "num_hidden_layers": 1})


def dense_modules(folder, activations=("activation.Tanh", "linear.Identity"), **changes):
    """Writes the files of two Dense modules. Returns their matrices and biases."""
    sentence_modules(folder, MEAN, ("Transformer", "Pooling", "Dense", "Dense", "Normalize"))
    rng, widths, weights = np.random.default_rng(0), (15, 7, 5), []
    for i, activation in enumerate(activations):
        path, bias = folder / f"{i + 2}_Dense", i == 0
        path.mkdir()
        config = {"in_features": widths[i], "out_features": widths[i + 1], "bias": bias}
        config |= {"activation_function": f"torch.nn.modules.{activation}", **changes}
        (path / "config.json").write_text(json.dumps(config))
        matrix, added = rng.normal(size=(widths[i + 1], widths[i])), rng.normal(size=widths[i + 1]) * bias
        weights.append((matrix, added))
        tensors = {"linear.weight": matrix, **({"linear.bias": added} if bias else {})}
        save_file({name: np.float32(value) for name, value in tensors.items()}, path / "model.safetensors")
    return weights


@pytest.mark.slow
def test_dense_modules_are_computed(tmp_path):
    to_huggingface(own_model(BARE), tmp_path / "model")
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(PIECES))
    weights = dense_modules(tmp_path / "model")
    embedder = convert(tmp_path / "model", tmp_path / "own")
    assert embedder.pooling == "projected"
    plain = embedder.changed(pooling="mean", normalize=False)
    texts = TEXTS[:2]
    (first, bias), (second, _) = weights
    x = np.tanh(np.array(plain.embed(texts)) @ first.T + bias) @ second.T
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.embed(texts), expected, atol=1e-5)
    np.testing.assert_allclose(load(tmp_path / "own").embed(texts), expected, atol=1e-5)
    embedder.export(tmp_path / "export")
    int8 = convert(tmp_path / "model", tmp_path / "int8", precision="int8")
    assert {layer.quantization_mode for layer in int8.model.pooler.layers} == {"int8"}
    parts = {layer.int8_parts for layer in sublayers(int8.model) if isinstance(layer, OneProduct)}
    assert parts == {2}, "its vectors are compared"
    assert (np.array(int8.embed(texts)) * expected).sum(axis=1).min() > 0.95
    np.testing.assert_allclose(load(tmp_path / "int8").embed(texts), int8.embed(texts), atol=1e-5)


def test_dense_modules_are_written_again(bert, tmp_path, caplog):
    folder, ids = tmp_path / "model", np.array([[2, 5, 6, 3]])
    to_huggingface(bert, folder)
    dense_modules(folder)
    model = from_huggingface(folder)
    whole = with_dense_modules(model, folder)
    to_huggingface(whole, tmp_path / "new")
    assert embedder_options(tmp_path / "new") == embedder_options(folder)
    again = with_dense_modules(from_huggingface(tmp_path / "new"), tmp_path / "new")
    np.testing.assert_array_equal(again.pooled(ids), whole.pooled(ids))
    assert not caplog.text
    to_huggingface(model, tmp_path / "bare")
    assert "modules.json is not written" in caplog.text
    to_huggingface(model.with_head(TaggingHead(3)), tmp_path / "tagger")
    assert not any((tmp_path / name / "modules.json").exists() for name in ("bare", "tagger"))
    with pytest.raises(ValueError, match="must be the layers of the model"):
        to_huggingface(whole, tmp_path / "other", files=embedder_files(whole))
    modules = [{"type": "a.Dense", "path": path} for path in ("1_Dense", "")]
    for files in (modules, modules[:1] * 2):
        with pytest.raises(ValueError, match=r"each with its config\.json, must be the layers of the model"):
            to_huggingface(whole, tmp_path / "other", files={"modules.json": files})


@pytest.mark.parametrize(
    ("pooling", "prompt"), [("mean", ""), ("first", "q: "), ("last", "x: "), ("projected", "q: ")]
)
def test_files_of_an_embedder_say_its_options(pooling, prompt, bert, tmp_path):
    model = bert.with_head(None, ProjectedPooler([7, 5], ["tanh", "linear"], [True, False], "last"))
    kept = {"config_sentence_transformers.json": {"prompts": {"q": "q: "}, "default_prompt_name": "q"}}
    vars(model)["checkpoint_files"] = kept
    options = {"pooling": pooling, "normalize": prompt == "", "prompt": prompt, "max_source_length": 9}
    write_files(tmp_path, embedder_files(model, **options), {})
    assert embedder_options(tmp_path) == options
    assert embedder_options(tmp_path, "q")["prompt"] == "q: "
    for path in tmp_path.glob("*_Dense/config.json"):
        assert json.loads(path.read_text())["activation_function"] in ("torch.nn.Tanh", "torch.nn.Identity")


def test_a_model_keeps_its_own_pooler_without_dense_modules(bert, tmp_path):
    assert with_dense_modules(bert, sentence_modules(tmp_path / "model", MEAN)) is bert


def test_dense_modules_become_the_pooler(bert, tmp_path):
    (first, bias), (second, _) = dense_modules(tmp_path / "model")
    ids = np.array([[2, 5, 6, 3]])
    states = np.array(bert.encode(ids))[0]
    found = np.array(with_dense_modules(bert, tmp_path / "model").pooled(ids))[0]
    np.testing.assert_allclose(found, np.tanh(states.mean(axis=0) @ first.T + bias) @ second.T, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": ("activation.Mish", "linear.Identity")}, "activation.Mish"),
        ({"module_input_name": "token_embeddings"}, "module_input_name='token_embeddings'"),
        ({"out_features": 6}, "size of the stored tensor"),
        ({"dropout_before": 0.5}, "dropout_before=0.5"),
    ],
)
def test_other_dense_modules_are_refused(bert, options, message, tmp_path):
    dense_modules(tmp_path / "model", **options)
    refuses(message, with_dense_modules, bert, tmp_path / "model")


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "bart", "vit"])
def test_modules_of_a_model_that_is_no_encoder_are_refused(model_type, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    sentence_modules(tmp_path, {"pooling_mode": "lasttoken"})
    refuses(f"with modules.json makes vectors .* a '{model_type}' model", convert, tmp_path, tmp_path / "own")
