"""generation_config.json: the outputs of `generate` of transformers with the folder's own search, or a refusal."""

import json
import logging

import pytest
from contracts import refuses, slow_but
from families import CONFIGS, own_texts, padded_on_the_left, rows_of, torch_model

from keras_transformer.decoding import (
    Beam,
    ExcludeTokens,
    Greedy,
    MinLength,
    NoRepeatNgram,
    Sample,
    SuppressTokens,
)
from keras_transformer.huggingface import from_huggingface, translator_options
from keras_transformer.huggingface.generation import search_options

CLEAR = 1e-3
NEVER, FEW_BEAMS = {"early_stopping": "never"}, {"num_beams": 2, "max_length": 9}
SEARCHES = {
    # name: configuration of the model, generation_config.json
    "bart": ("bart", {**NEVER, "num_beams": 4, "length_penalty": 2.0, "min_length": 5, "max_length": 10}),
    "bart-ngrams": ("bart", {**NEVER, "num_beams": 2, "no_repeat_ngram_size": 2, "max_new_tokens": 9}),
    "bart-forced": ("bart", {"max_length": 7, "forced_eos_token_id": 2, "forced_bos_token_id": 5}),
    "t5": ("t5", {"num_beams": 3, "length_penalty": 0.0, "max_new_tokens": 7, "suppress_tokens": [5, 6]}),
    "t5-greedy": ("t5", {"min_new_tokens": 4, "max_length": 9, "no_repeat_ngram_size": 1}),
    "marian": ("marian", {**NEVER, **FEW_BEAMS, "bad_words_ids": [[12]], "renormalize_logits": True}),
    "gpt2": ("gpt2", {"max_new_tokens": 6, "min_new_tokens": 3, "suppress_tokens": [7]}),
    "gpt2-beam": ("gpt2", {**NEVER, "num_beams": 3, "length_penalty": 0.5, "max_new_tokens": 6}),
    "pegasus": ("pegasus", {**NEVER, "num_beams": 3, "length_penalty": 0.8, "max_length": 9}),
    "mbart": ("mbart", {**NEVER, **FEW_BEAMS, "suppress_tokens": [6], "min_length": 4}),
    "m2m_100": ("m2m_100", {"max_length": 9, "no_repeat_ngram_size": 2, "forced_eos_token_id": 2}),
    "llama": ("llama", {**NEVER, "num_beams": 2, "max_new_tokens": 7, "no_repeat_ngram_size": 2}),
}
SMALL = {
    "t5": {"num_decoder_layers": 2},  # transformers: as many as the encoder has
    "gpt2": {"vocab_size": 13, "bos_token_id": 0, "eos_token_id": 11, "pad_token_id": 12},
    "llama": {"vocab_size": 13, "bos_token_id": 0, "eos_token_id": 11, "pad_token_id": 12},
    "marian": {"vocab_size": 13, "pad_token_id": 12, "decoder_start_token_id": 12, "scale_embedding": False},
}


@pytest.mark.parametrize("name", slow_but(("bart", "bart-forced", "gpt2"), SEARCHES))
def test_the_search_of_a_folder_is_that_of_transformers(name, tmp_path):
    torch = pytest.importorskip("torch")
    case, search = SEARCHES[name]
    there = torch_model({**CONFIGS[case], "vocab_size": 13, **SMALL.get(case, {})}, seed=3)
    there.save_pretrained(tmp_path)
    given = json.loads((tmp_path / "generation_config.json").read_text())
    ids = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    given = {key: given[key] for key in ids if key in given}
    (tmp_path / "generation_config.json").write_text(json.dumps({**given, **search}))
    there = type(there).from_pretrained(tmp_path).eval()
    model = from_huggingface(tmp_path)
    own_options = search_options(tmp_path, model)
    forced = search.get("forced_bos_token_id")
    rows, real = rows_of(1, pad_id=model.pad_id, lowest=3, end=11)
    given, kept, start = rows, real, 1
    if not hasattr(model, "encoder"):
        start = rows.shape[1]
        given, kept = padded_on_the_left(rows, real)
    beams = {"num_return_sequences": 2} if "num_beams" in search else {}
    options = {"return_dict_in_generate": True, "output_scores": True, **beams}
    mask = torch.tensor(kept.astype("int64"))
    found = there.generate(torch.tensor(given), attention_mask=mask, **options)
    expected = found.sequences[:: 2 if beams else 1, start:].tolist()
    prefix = {} if forced is None else {"prefix": [[forced]] * len(rows)}
    strategy, constraints, limit = (own_options[key] for key in ("strategy", "constraints", "max_length"))
    own = own_texts(model, rows, strategy, limit, constraints=constraints, **prefix)
    compared = 0
    for i, (mine, other) in enumerate(zip(own, expected, strict=True)):
        if beams:
            first, second = found.sequences_scores[2 * i : 2 * i + 2]
        else:
            first, second = torch.stack(found.scores, dim=1)[i, : len(mine)].topk(2).values.T
        if (first - second).min() > CLEAR:
            compared += 1
            mine, other = ([x for x in row if x not in (model.pad_id, model.eos_id)] for row in (mine, other))
            assert mine == other
    assert compared > 1


class Model:
    """What `search_options` looks at."""

    encoder, max_positions, bos_id = None, 64, 2


@pytest.fixture
def read(tmp_path):
    def read(model=Model, **config):
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
        return search_options(tmp_path, model)

    return read


def test_each_key_becomes_a_part_of_the_search(read, caplog):
    assert read() == {"strategy": Greedy(), "constraints": [], "max_length": None}
    assert read(max_length=1000)["max_length"] == 64
    beams = read(num_beams=4, length_penalty=2.0, early_stopping="never", num_return_sequences=2)
    assert beams["strategy"] == Beam(4, 2.0, 2, "length")
    assert read(do_sample=True, temperature=0.7, top_p=0.9)["strategy"] == Sample(0.7, 50, 0.9)
    constraints = read(min_length=5, no_repeat_ngram_size=3, bad_words_ids=[[7]], renormalize_logits=True)
    assert constraints["constraints"][:2] == [NoRepeatNgram(3), MinLength(5)]
    assert constraints["constraints"][2].token_ids == ExcludeTokens([7]).token_ids
    # `min_new_tokens` wins over `min_length`, and an end is no bad word.
    assert read(min_length=9, min_new_tokens=3)["constraints"] == [MinLength(4)]
    assert read(bad_words_ids=[[2], [7]], eos_token_id=2)["constraints"] == [SuppressTokens([7])]
    # A forced end takes the place of the last token, after a prompt too.
    forced = {"max_new_tokens": 6, "eos_token_id": [2, 3], "forced_eos_token_id": 2}
    assert read(**forced)["max_length"] == read(object(), **forced)["max_length"] == 5


def test_config_json_has_the_search_only_without_a_file_of_its_own(read, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_beams": 3, "max_length": 9, "num_beam_groups": 3}))
    assert read() == {"strategy": Greedy(), "constraints": [], "max_length": None}
    (tmp_path / "generation_config.json").unlink()
    refuses(r"`num_beam_groups` of config\.json must be 1", search_options, tmp_path, Model)


@pytest.mark.parametrize(
    ("config", "generation", "ids", "start"),
    [
        # The first token is forced by generation_config.json, and by config.json only where there is no such file.
        ({"forced_bos_token_id": 5}, {}, {}, ()),
        ({"forced_bos_token_id": 5}, {"forced_bos_token_id": 6}, {}, (6,)),
        ({"forced_bos_token_id": 5}, None, {}, (5,)),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 4}, None, {"bos_id": 4}, (4,)),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 4}, {}, {}, ()),
        # The token before the output likewise; without one it is `bos_token_id`.
        ({"decoder_start_token_id": 2}, {"decoder_start_token_id": 2, "bos_token_id": 4}, {}, ()),
        ({"decoder_start_token_id": 2}, {"decoder_start_token_id": 6}, {"bos_id": 6}, ()),
        ({"decoder_start_token_id": 2}, {"bos_token_id": 4}, {"bos_id": 4}, ()),
        ({"bos_token_id": 4}, None, {"bos_id": 4}, ()),
        ({}, {"decoder_start_token_id": 6}, {"bos_id": 6}, ()),
    ],
)
def test_outputs_begin_as_in_transformers(config, generation, ids, start, tmp_path, caplog):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "pegasus", **config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    found, options = translator_options(tmp_path, None)
    assert (found, options["target_start"]) == (ids, start)
    assert ("outputs begin with" in caplog.text) == bool(ids and "decoder_start_token_id" in config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"num_beams": 4}, "early_stopping=False"),
        ({"repetition_penalty": 1.2}, "repetition_penalty counts"),
        ({"invented": 3}, "invented is not known"),
        ({"max_length": 30}, "max_length counts the prompt"),
        ({"min_length": 3}, "min_length counts the prompt"),
        ({"bos_token_id": 2}, "eos_token_id is missing"),
        ({"num_beams": 2, "forced_eos_token_id": 2, "eos_token_id": 2}, "ranks an output at its limit"),
        ({"num_beams": 2, "forced_bos_token_id": 5}, "with the probability of that token"),
    ],
)
def test_differences_from_transformers_are_warnings(config, named, read, caplog):
    with caplog.at_level(logging.WARNING):
        read(object() if "length" in named else Model, **config)
    assert named in caplog.text


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"do_sample": True, "num_beams": 2}, "`do_sample` must be False"),
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6"),
        ({"begin_suppress_tokens": [5]}, "`begin_suppress_tokens` of generation_config.json"),
        ({"stop_strings": ["x"]}, "stop_strings"),
        ({"bad_words_ids": [[3, 4]]}, "must be single tokens"),
        ({"num_beams": 2, "length_penalty": -1.0}, "length_penalty=-1.0"),
        ({"bad_words_ids": [3]}, "must be a list of lists"),
        ({"forced_eos_token_id": 5, "eos_token_id": 2}, "`forced_eos_token_id` must be an id of an end"),
        ({"num_return_sequences": 2}, "`num_return_sequences` must be 1 without beams"),
    ],
)
def test_a_search_that_the_library_lacks_is_refused(config, named, read):
    refuses(named, read, **config)
