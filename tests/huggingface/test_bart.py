"""BART and its relatives: the same numbers, texts and files as transformers on PyTorch."""

import keras
import numpy as np
import pytest
from families import assert_same_weights, ours, theirs
from relatives import ENCODER_DECODERS as CONFIGS

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from test_parity import assert_same_state, quietly_loaded, seq2seq_difference  # noqa: E402

TOLERANCE = 2e-5
EACH = pytest.mark.parametrize("case", CONFIGS)


@EACH
def test_outputs_are_those_of_transformers(case, tmp_path, caplog):
    their_model = theirs(CONFIGS[case])
    their_model.save_pretrained(tmp_path / "theirs")
    model = from_huggingface(tmp_path / "theirs")
    assert seq2seq_difference(model, their_model, 0) <= TOLERANCE
    beside = {} if model.target_positions is not None else {"max_position_embeddings": 23}
    to_huggingface(model, tmp_path / "ours", 2000, beside, family=CONFIGS[case]["model_type"])
    again = quietly_loaded(tmp_path / "ours", caplog)
    if case.startswith("pegasus"):  # transformers stores the sinusoids, rounded in another way
        for stack in ("encoder", "decoder"):
            table, other = (
                getattr(each.model, stack).embed_positions.weight.data for each in (again, their_model)
            )
            torch.testing.assert_close(table, other, rtol=0, atol=1e-5)
            table.copy_(other)
    assert_same_state(again, their_model)
    assert_same_weights(from_huggingface(tmp_path / "ours"), model)


@pytest.mark.parametrize("case", ["bart", "mbart", "m2m_100", "pegasus"])
def test_searches_find_the_texts_of_transformers(case, tmp_path):
    """With a language's id as the first one of each text: a prefix here, `forced_bos_token_id` there."""
    clear, language = 0, 9
    for seed in range(3):
        their_model = theirs({**CONFIGS[case], "vocab_size": 13}, seed)
        their_model.save_pretrained(tmp_path / str(seed))
        model = from_huggingface(tmp_path / str(seed))
        sources = np.random.default_rng(seed).integers(3, 13, (3, 6))
        options = {
            "do_sample": False,
            "max_length": 9,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        options |= {"forced_eos_token_id": None, "forced_bos_token_id": language}
        beam = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.0, "early_stopping": "never"}
        for strategy, more in ((Greedy(), {}), (Beam(4, 1.0, normalization="length"), beam)):
            given = their_model.generate(torch.tensor(sources), **options, **more)
            tokens = model.generate(
                sources, strategy, 8, prefix=np.full((3, 1), language), jit_compile=False
            ).tokens
            for row, found in enumerate(keras.ops.convert_to_numpy(tokens)[:, 0].tolist()):
                text = given.sequences[2 * row if more else row, 1:].tolist()
                if more:
                    first, second = given.sequences_scores[2 * row : 2 * row + 2]
                    margin = first - second
                else:
                    end = text.index(2) + 1 if 2 in text else len(text)
                    best = torch.stack(given.scores, dim=1)[row, 1:end].topk(2).values
                    margin = (best[:, 0] - best[:, 1]).min()
                if margin > 1e-3:
                    clear += 1
                    assert found == (text + [1] * 8)[:8]
    assert clear > 9


@EACH
def test_config_json_describes_the_model(case):
    model, family = ours(CONFIGS[case]), FAMILIES[CONFIGS[case]["model_type"]]
    config = family.make_config(model)
    assert family.make_config(family.make_model(config)) == config
    assert (
        config.items() >= {key: CONFIGS[case][key] for key in ("encoder_ffn_dim", "decoder_layers")}.items()
    )


def test_another_family_refuses_the_model():
    with pytest.raises(ValueError, match="normalize_first"):
        FAMILIES["bart"].make_config(ours(CONFIGS["mbart"]))
    with pytest.raises(ValueError, match="`positions`"):
        FAMILIES["m2m_100"].make_config(ours({**CONFIGS["mbart"], "max_position_embeddings": 5}))
