"""Gemma 3 whose tokens see the later ones too: EmbeddingGemma."""

import json

import numpy as np
import pytest
from contracts import refuses
from families import DECODER, GEMMA, LOCAL, difference, randomized
from pieces import GEMMA as GEMMA_PIECES
from pieces import sentence_modules, train_pieces
from safetensors.numpy import save_file

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.files import write_tensors
from keras_transformer.models import EncoderModel
from keras_transformer.serving import Embedder, load

CONFIG = {
    **GEMMA,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3TextModel"],
    "use_bidirectional_attention": True,
    "layer_types": LOCAL,
}


def made(**changes):
    """This library's model of a configuration, with random weights."""
    return randomized("gemma3_text", FAMILIES["gemma3_text"].make_model({**CONFIG, **changes}))


# A layer whose window is 4 shows a token 2 tokens before it and 2 after it.
@pytest.mark.parametrize(("kinds", "distance"), [(["sliding_attention"] * 2, 4), (LOCAL, 10)])
def test_a_token_sees_those_after_it_as_far_as_its_windows_reach(kinds, distance):
    model = made(layer_types=kinds)
    assert type(model) is EncoderModel
    ids, places = np.arange(2, 13), np.arange(11)
    states = np.array(model(ids[None]))
    for place in (0, 10):
        changed = np.array(model(np.where(places == place, 20, ids)[None]))
        moved = np.abs(changed - states).max(axis=-1)[0] > 1e-6
        assert moved.tolist() == [abs(i - place) <= distance for i in places]


@pytest.mark.parametrize(
    "changes", [{}, {"sliding_window": 7, "layer_types": LOCAL[::-1], "num_key_value_heads": 6}]
)
def test_states_are_those_of_transformers(changes, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.Gemma3TextConfig(attn_implementation="eager", **{**CONFIG, **changes})
    torch.manual_seed(0)
    there = transformers.Gemma3TextModel(config).eval()
    with torch.no_grad():
        for parameter in there.parameters():
            parameter.normal_(0.0, 0.3)
    there.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["use_bidirectional_attention"]
    assert difference(from_huggingface(tmp_path), there) < 2e-5


def folder_of(folder, **tokenizer_config):
    """Writes an EmbeddingGemma: a model, its tokenizer, and the modules of sentence-transformers."""
    folder.mkdir()
    train_pieces(folder / "tokenizer.model", vocab_size=400, **GEMMA_PIECES)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    config = {**CONFIG, "vocab_size": 420, "eos_token_id": 1, "bos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder, list(FAMILIES["gemma3_text"].make_tensors(made(**config))), 2**30)
    prompts = {"prompts": {"query": "task: "}, "default_prompt_name": "query"}
    modules = ("Transformer", "Pooling", "Dense", "Normalize")
    sentence_modules(folder, {"pooling_mode_mean_tokens": True}, modules, 64, **prompts)
    (folder / "2_Dense").mkdir()
    dense = {"in_features": 18, "out_features": 7, "bias": False, "activation_function": "linear.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    matrix = np.random.default_rng(1).normal(size=(7, 18)).astype("float32")
    save_file({"linear.weight": matrix}, folder / "2_Dense" / "model.safetensors")
    return matrix


BOTH = {"add_bos_token": True, "add_eos_token": True}


@pytest.mark.slow
def test_a_folder_becomes_an_embedder(tmp_path):
    matrix = folder_of(tmp_path / "model", **BOTH)
    embedder = convert(tmp_path / "model", tmp_path / "own")
    assert type(embedder) is Embedder
    model, tokenizer = embedder.model, embedder.tokenizer
    text = "the dog runs"
    ids = [2, *tokenizer.tokenize("task: " + text).numpy(), 1]
    vector = matrix @ np.array(model.encode(np.array([ids])))[0].mean(axis=0)
    expected = vector / np.linalg.norm(vector)
    found = embedder.embed([text, "a much longer text in the park"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(load(tmp_path / "own").embed([text])[0], expected, atol=1e-5)
    int8 = convert(tmp_path / "model", tmp_path / "int8", precision="int8")
    assert int8.embed([text])[0] @ expected > 0.9


def test_a_tokenizer_that_ends_no_text_is_refused(tmp_path):
    folder_of(tmp_path / "model")
    for config in ({}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": False}):
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"A token must end each text in a model that makes vectors"):
            convert(tmp_path / "model", tmp_path / "own")


def test_an_embedding_gemma_is_neither_chat_model_nor_written(tmp_path):
    folder_of(tmp_path / "model", **BOTH)
    refuses("does not chat", convert, tmp_path / "model", tmp_path / "own", chat=True)
    message = "`model` of a 'gemma3_text' model must be of one of the classes"
    refuses(message, to_huggingface, made(), tmp_path / "written", family="gemma3_text")


def test_a_causal_gemma_has_no_model_without_scores():
    family = FAMILIES["gemma3_text"]
    assert family.variant({**CONFIG, "use_bidirectional_attention": False}) is family
    assert DECODER["num_hidden_layers"] == len(LOCAL)
    refuses("Gemma3ForCausalLM", family.check_classes, {**CONFIG, "use_bidirectional_attention": None})
