"""Folders of the newer families that are wrong or hostile: a sentence, before anything large is made."""

import json
import shutil

import pytest
from families import ours
from relatives import DECODERS, ENCODER_DECODERS
from test_encoders import CONFIGS

from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)

CASES = {**CONFIGS, **DECODERS, **ENCODER_DECODERS}
HUGE = 10**12


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the models of each case, written once."""
    made = {}

    def folder_of(case, target):
        if case not in made:
            made[case] = tmp_path_factory.mktemp(case) / "model"
            to_huggingface(ours(CASES[case]), made[case], family=CASES[case]["model_type"])
        return shutil.copytree(made[case], target)

    return folder_of


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("roberta-Model", {"pad_token_id": HUGE}, "max_length"),
        ("roberta-Model", {"pad_token_id": [1]}, "another type"),
        ("roberta-Model", {"max_position_embeddings": HUGE}, "max_position_embeddings"),
        ("roberta-Model", {"architectures": ["RobertaForCausalLM"]}, "RobertaForCausalLM"),
        ("xlm-roberta-Model", {"vocab_size": HUGE}, "vocab_size"),
        ("electra-Model", {"embedding_size": HUGE}, "embedding_size"),
        ("electra-Model", {"embedding_size": 8}, r"shape \(31, 7\), not \(31, 8\)"),
        ("distilbert-Model", {"hidden_dim": HUGE}, "hidden_dim"),
        ("distilbert-Model", {"n_layers": HUGE}, "n_layers"),
        ("distilbert-Model", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds=True"),
        ("mpnet-Model", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64"),
        ("mistral", {"sliding_window": "wide"}, "sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"]}, "for each of its 2 layers"),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, "linear_attention"),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ("phi3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "another type"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "soft_cap=-1.0"),
        ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 0}, "another type"),
        ("bart", {"encoder_layers": HUGE}, "encoder_layers"),
        ("mbart", {"normalize_before": False}, "normalize_before=False"),
        ("m2m_100", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("pegasus", {"d_model": HUGE}, "d_model"),
    ],
    ids=str,
)
def test_wrong_values_are_named(folders, case, changes, message, tmp_path):
    folder = folders(case, tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        from_huggingface(folder)


def test_models_without_a_tokenizer_say_so(tmp_path):
    without = [name for name, family in FAMILIES.items() if family.tokenizer is None]
    assert without == ["vit"]
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="whose tokenizer the library has"):
        tokenizers_from_huggingface(tmp_path)
    to_huggingface(ours(CASES["mbart"]), tmp_path / "model")
    with pytest.raises(ValueError, match="must have the files of the model's tokenizer"):
        tokenizers_from_huggingface(tmp_path / "model")


def test_a_family_that_does_not_exist_or_fit_is_not_written(tmp_path):
    model = ours(CASES["roberta-Model"])
    with pytest.raises(ValueError, match=r"`family` must be one of .*family='bird'"):
        to_huggingface(model, tmp_path / "new", family="bird")
    with pytest.raises(ValueError, match=r"`positions` of a 'bert' model must have .*positions\.offset=0"):
        to_huggingface(model, tmp_path / "new", family="bert")
    assert not list(tmp_path.iterdir())
