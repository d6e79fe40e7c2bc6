"""Llama's relatives: the same numbers, texts and files as transformers on PyTorch."""

import keras
import numpy as np
import pytest
from families import EOS, assert_same_weights, ours, theirs
from relatives import DECODERS as CONFIGS
from relatives import LOCAL

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.tensors import without_copies
from keras_transformer.layers import ZeroCenteredRMSNormalization

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from test_parity import assert_same_state, difference, quietly_loaded  # noqa: E402

TOLERANCE = 2e-5
EACH = pytest.mark.parametrize("case", CONFIGS)
ONE_OF_EACH = pytest.mark.parametrize("case", ["mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"])


@pytest.fixture(params=CONFIGS)
def checkpoint(request, tmp_path):
    """A model of transformers and the folder that it was saved to."""
    their_model = theirs(CONFIGS[request.param])
    their_model.save_pretrained(tmp_path / "theirs")
    return their_model, tmp_path / "theirs"


def test_outputs_are_those_of_transformers(checkpoint):
    their_model, folder = checkpoint
    assert difference(from_huggingface(folder), their_model) <= TOLERANCE


def test_a_checkpoint_comes_back_unchanged(checkpoint, tmp_path, caplog):
    their_model, folder = checkpoint
    model_type = their_model.config.model_type
    to_huggingface(from_huggingface(folder), tmp_path / "ours", 2000, family=model_type)
    again = quietly_loaded(tmp_path / "ours", caplog)
    assert_same_state(again, their_model)
    assert_same_weights(from_huggingface(tmp_path / "ours"), from_huggingface(folder))


@ONE_OF_EACH
def test_step_by_step_is_all_at_once(case):
    model = ours(CONFIGS[case])
    ids = np.random.default_rng(0).integers(0, EOS, (3, 11))
    expected = keras.ops.convert_to_numpy(model(ids))
    cache = model.decoder.empty_cache(3, 11)
    for i in range(11):
        logits, cache = model.decode(ids[:, i : i + 1], cache, i)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(logits)[:, 0], expected[:, i], atol=1e-4)


@ONE_OF_EACH
def test_searches_find_the_texts_of_transformers(case, tmp_path):
    assert_same_searches(case, [11], tmp_path)


def test_searches_stop_at_any_of_several_ends(tmp_path):
    """As Llama 3 and Gemma have them: at the end of a text and of a turn."""
    assert_same_searches("gemma2", [11, 3, 7, 5], tmp_path)


def assert_same_searches(case, ends, tmp_path):
    """Compares greedy search and beam search with transformers, where the ids in `ends` end a text."""
    few = {**CONFIGS[case], "vocab_size": 13, "eos_token_id": ends, "pad_token_id": 12, "bos_token_id": 0}
    clear = 0
    for seed in range(3):
        their_model = theirs(few, seed)
        their_model.save_pretrained(tmp_path / str(seed))
        model = from_huggingface(tmp_path / str(seed))
        prompts = np.random.default_rng(seed).integers(1, 11, (3, 6))
        options = {
            "do_sample": False,
            "max_new_tokens": 9,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        for strategy, more in (
            (Greedy(), {}),
            (
                Beam(4, 1.0, normalization="length"),
                {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.0, "early_stopping": "never"},
            ),
        ):
            given = their_model.generate(torch.tensor(prompts), **options, **more)
            found = keras.ops.convert_to_numpy(
                model.generate(prompts, strategy, 9, jit_compile=False).tokens[:, 0]
            )
            for row in range(3):
                if more:
                    text = given.sequences[2 * row, 6:].tolist()
                    first, second = given.sequences_scores[2 * row : 2 * row + 2]
                    margin = first - second
                else:
                    text = given.sequences[row, 6:].tolist()
                    end = next((i for i, token in enumerate(text, 1) if token in ends), len(text))
                    best = torch.stack(given.scores, dim=1)[row, :end].topk(2).values
                    margin = (best[:, 0] - best[:, 1]).min()
                text = (text + [12] * 9)[:9]
                if margin > 1e-3:
                    clear += 1
                    assert found[row].tolist() == text
    assert clear > 9


@EACH
def test_config_json_describes_the_model(case):
    model = ours(CONFIGS[case])
    family = FAMILIES[CONFIGS[case]["model_type"]]
    config = family.make_config(model)
    again = family.make_model(config)
    assert family.make_config(again) == config
    assert [t.shape for t in without_copies(family.make_tensors(again))] == [
        t.shape for t in without_copies(family.make_tensors(model))
    ]


def test_a_fresh_zero_centred_norm_only_normalises():
    norm = ZeroCenteredRMSNormalization(epsilon=0.0)
    x = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(norm(x), x / np.sqrt(12.5), rtol=1e-6)
    norm.scale.assign([1.0, -1.0])
    np.testing.assert_allclose(norm(x), [[6 / np.sqrt(12.5), 0.0]], rtol=1e-6)


def test_a_family_without_windows_by_layer_refuses_them():
    model = ours(CONFIGS["gemma2"])
    with pytest.raises(ValueError, match="embedding_scale"):
        FAMILIES["mistral"].make_config(model)
    with pytest.raises(ValueError, match=r"layer_types=\['full"):
        FAMILIES["mistral"].make_model({**CONFIGS["mistral"], "layer_types": LOCAL[::-1]})
