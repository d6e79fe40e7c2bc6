"""Language models whose modules.json makes vectors of texts, such as Qwen3-Embedding: the state of the last token."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from families import CONFIGS, change_config, change_tensors, own_model
from pieces import sentence_modules

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import embedder_options, from_huggingface, to_huggingface
from keras_transformer.models import EncoderModel
from keras_transformer.runs import TuningRecipe
from keras_transformer.runs.tuning_tasks import task_of
from keras_transformer.serving import Embedder, load

RECORDED = json.loads(Path(__file__).with_name("recorded_byte_level.json").read_text())["qwen2"]["tokenizer"]
END = "<|endoftext|>"
END_ID = next(token["id"] for token in RECORDED["added_tokens"] if token["content"] == END)
TEXTS = ["the dog runs", "a", ""]


def template(*parts):
    """The `post_processor` of a text "A" with tokens around it."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if part == "A"
        else {"SpecialToken": {"id": part, "type_id": 0}}
        for part in parts
    ]
    tokens = {END: {"id": END, "ids": [END_ID], "tokens": [END]}}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens}


def folder_of(folder, post_processor, pooling="lasttoken", **config):
    """Writes a Qwen 3 with the modules of sentence-transformers. Returns the language model."""
    sizes = {"num_hidden_layers": 1, "vocab_size": 450, "bos_token_id": 2, "eos_token_id": 1}
    model = own_model({**CONFIGS["qwen3"], **sizes, "tie_word_embeddings": False, **config})
    to_huggingface(model, folder)
    parts = {**RECORDED, "post_processor": post_processor}
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    options = {"eos_token": "<|im_start|>", "pad_token": END, "model_max_length": 9}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    sentence_modules(folder, {f"pooling_mode_{pooling}": True})
    return model


def without_scores(tensors):
    """The tensors as a model without the scores of ids saves them."""
    return {name.removeprefix("model."): x for name, x in tensors.items() if name != "lm_head.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scores", "states"])
def test_the_vector_is_the_state_of_the_last_token(kind, tmp_path):
    language_model = folder_of(tmp_path / "model", template("A", END))
    if kind == "states":  # saved without the scores of ids, and without the beginning of the names
        change_config(tmp_path / "model", architectures=["Qwen3Model"])
        change_tensors(tmp_path / "model", without_scores)
    embedder = convert(tmp_path / "model", tmp_path / "own")
    assert type(embedder) is Embedder and embedder.max_source_length == 9
    model, tokenizer = embedder.model, embedder.tokenizer
    assert (type(model), model.starts_with_cls, model.sep_id) == (EncoderModel, False, END_ID)
    assert tokenizer.pad_id not in (None, END_ID)
    expected = []
    for ids in tokenizer.tokenize(TEXTS).to_list():
        states = np.array(language_model.hidden(np.array([[*ids[:8], END_ID]])))
        expected.append(states[0, -1] / np.linalg.norm(states[0, -1]))
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(load(tmp_path / "own").embed(TEXTS), expected, atol=1e-5)
    embedder.export(tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export" / "1")).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(TEXTS))["vector"], expected, atol=1e-5)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A language model, its folder and the embedder that is made of it."""
    folder = tmp_path_factory.mktemp("qwen3") / "model"
    language_model = folder_of(folder, template("A", END))
    return language_model, folder, convert(folder, folder.parent / "own")


def test_a_text_that_is_too_long_keeps_its_end(written):
    language_model, _, embedder = written
    text = "the dog runs in the park and the men are there"
    ids = [*embedder.tokenizer.tokenize(text).numpy()[:8], END_ID]
    state = np.array(language_model.hidden(np.array([ids])))[0, -1]
    with pytest.warns(UserWarning, match="longer than"):
        (vector,) = embedder.embed([text])
    np.testing.assert_allclose(vector, state / np.linalg.norm(state), atol=1e-5)


@pytest.mark.slow
def test_mean_pooling_of_a_causal_model(written, tmp_path):
    language_model, folder, embedder = written
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert embedder_options(tmp_path / "model")["pooling"] == "mean"
    ids = [*embedder.tokenizer.tokenize(TEXTS[0]).numpy(), END_ID]
    mean = np.array(language_model.hidden(np.array([ids])))[0].mean(axis=0)
    found = embedder.changed(pooling="mean").embed(TEXTS)[0]
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.parametrize("parts", [("A",), ("A", END, END), (END, "A", END)])
def test_other_tokens_around_a_text_are_refused(written, parts, tmp_path):
    shutil.copytree(written[1], tmp_path / "model")
    described = json.dumps({**RECORDED, "post_processor": template(*parts)})
    (tmp_path / "model" / "tokenizer.json").write_text(described)
    with pytest.raises(ValueError, match=r"A token must end each text .* none but `bos_token` may begin it"):
        convert(tmp_path / "model", tmp_path / "own")


def test_without_modules_it_stays_a_language_model(written, tmp_path):
    shutil.copytree(written[1], tmp_path / "model")
    (tmp_path / "model" / "modules.json").unlink()
    assert type(from_huggingface(tmp_path / "model")).__name__ == "LanguageModel"
    change_config(tmp_path / "model", architectures=["Qwen3Model"])
    with pytest.raises(ValueError, match=r"architectures=\['Qwen3Model'\]"):
        from_huggingface(tmp_path / "model")


def test_a_tuning_puts_the_same_ids_around_a_text(tmp_path):
    folder_of(tmp_path / "model", template("A", END))
    task = task_of(tmp_path / "model", TuningRecipe(), "pairs.csv")
    model = task.make_model([])
    ((x, _),) = task.batches(model, [("the dog runs", "a"), ("a " * 20, "b")]).dataset(epochs=1)
    ids = x["token_ids"].numpy()
    assert ids.shape[-1] == 9  # `model_max_length`
    ends = np.argmax(ids == END_ID, axis=-1)
    for row, end in zip(ids.reshape(-1, 9), ends.ravel(), strict=True):
        assert row[end] == END_ID and set(row[end + 1 :]) <= {model.encoder.pad_id}
    embedder = convert(tmp_path / "model", tmp_path / "own")
    assert embedder.tokenizer.eos_id == task.tokenizer.eos_id
