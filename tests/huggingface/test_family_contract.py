"""What every family of checkpoints promises, for each configuration of families.py.

The outputs and texts are those of transformers, a checkpoint of transformers is written unchanged, and a model of this
library is read and written unchanged. Without PyTorch, test_recorded.py compares outputs.
"""

import json

import numpy as np
import pytest
from contracts import slow_but
from families import (
    CONFIGS,
    DECODERS,
    EOS,
    FIRST,
    FIRST_ENCODERS,
    assert_same_tensors,
    assert_same_weights,
    difference,
    inputs_of,
    loaded_without_warnings,
    own_model,
    own_outputs,
    own_texts,
    randomized,
    rows_of,
    torch_model,
    torch_texts,
)
from record import BEAM, CLEAR, LONGEST, WITHOUT_PADDING

from keras_transformer import layers
from keras_transformer.decoding import Beam, ExcludeTokens, Greedy
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.checkpoint import Checkpoint
from keras_transformer.huggingface.checkpoint_files import OF_HEADS, keep_files, write_files
from keras_transformer.huggingface.files import stored_tensors
from keras_transformer.huggingface.known_keys import IGNORED
from keras_transformer.huggingface.tensors import fill_weights
from keras_transformer.keras_internals import without_memory
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    LanguageModel,
    Pooler,
    VisionTransformer,
)

# All of it is rounding. The largest difference found was 2.1e-5, in the states of "modernbert-mean" with another seed.
# There each side is 6e-6 to 1.2e-5 away from its own float64. In float64 the two differ by 3.1e-6, and by 2e-7 once
# transformers also computes its softmax and its rotary angles in float64, which it does in float32 whatever the dtype.
TOLERANCE = {case: 2e-4 if case in {*FIRST, *FIRST_ENCODERS} else 2e-5 for case in CONFIGS}
NO_LIMIT = ("llama", "marian", "m2m_100", "pegasus")  # their positions are computed, for texts of any length
# Keys of config.json that transformers leaves open, and other names of the same.
DIFFERING = {"_name_or_path", "dtype", "n_inner", "hidden_act", "classifier_dropout", "architectures"}


@pytest.fixture
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def assert_same_state(model, expected):
    """Two models of transformers hold the same values, bit for bit."""
    import torch

    found, expected = model.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.sampled
def test_outputs_agree_with_transformers(case, transformers, tmp_path):
    there = torch_model(CONFIGS[case])
    there.save_pretrained(tmp_path)
    model = from_huggingface(tmp_path)
    assert difference(model, there) <= TOLERANCE[case]
    if case.startswith("vit"):
        assert (model.pooler is not None) is CONFIGS[case]["has_pooler"]


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.sampled
def test_checkpoint_of_transformers_is_written_unchanged(case, transformers, tmp_path, caplog):
    there, family = torch_model(CONFIGS[case]), CONFIGS[case]["model_type"]
    there.save_pretrained(tmp_path / "there")
    model = from_huggingface(tmp_path / "there")
    beside = {key: CONFIGS[case][key] for key in ("id2label",) if family == "vit" and key in CONFIGS[case]}
    if beside:
        beside["label2id"] = {label: int(i) for i, label in beside["id2label"].items()}
    if family in NO_LIMIT:
        beside["max_position_embeddings"] = CONFIGS[case]["max_position_embeddings"]
    to_huggingface(model, tmp_path / "own", 2000, beside, family=family)
    again = loaded_without_warnings(tmp_path / "own", CONFIGS[case], caplog)
    if family == "pegasus":  # transformers stores the sinusoids, rounded in another way
        for stack in ("encoder", "decoder"):
            table, other = (getattr(each.model, stack).embed_positions.weight.data for each in (again, there))
            np.testing.assert_allclose(table.numpy(), other.numpy(), rtol=0, atol=1e-5)
            table.copy_(other)
    assert_same_state(again, there)
    assert_same_weights(from_huggingface(tmp_path / "own"), model)
    if case in {*FIRST, *FIRST_ENCODERS}:
        saved, expected = again.config.to_dict(), there.config.to_dict()
        assert {key for key in saved if saved[key] != expected.get(key)} <= DIFFERING


@pytest.mark.parametrize("case", [*FIRST, *FIRST_ENCODERS])
@pytest.mark.sampled
def test_own_model_computes_the_same_in_transformers(case, transformers, tmp_path, caplog):
    model = own_model(CONFIGS[case])
    to_huggingface(model, tmp_path / "new")
    there = loaded_without_warnings(tmp_path / "new", CONFIGS[case], caplog)
    assert difference(model, there) <= TOLERANCE[case]


@pytest.mark.parametrize("case", slow_but(("gpt2", "bert-choice"), CONFIGS))
def test_own_model_is_read_back_unchanged(case, tmp_path):
    config = CONFIGS[case]
    model, family = own_model(config), FAMILIES[config["model_type"]]
    to_huggingface(model, tmp_path / "new", family=family.model_type)
    again = from_huggingface(tmp_path / "new")
    assert type(again) is type(model)
    assert_same_weights(again, model)
    assert family.make_config(again) == family.make_config(model)
    inputs, _, _ = inputs_of(model)
    for found, expected in zip(own_outputs(again, inputs), own_outputs(model, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


def plain_gpt2():
    decoder = layers.Decoder(2, 3, 7, dropout=0.0, activation="gelu", normalize_first=True)
    embeddings = layers.Embeddings(31, 12, layers.LearnedPositions(13), dropout=0.0)
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    return LanguageModel(embeddings, decoder, output=layers.TokenEmbedding(31, 12), **ids)


def plain_bert():
    encoder = layers.Encoder(2, 3, 7, dropout=0.2, activation="gelu", layer_norm_epsilon=1e-6)
    parts = {"pooler": Pooler(), "head": ClassificationHead(3, labels=["a", "b", "c"])}
    sums = {"segments": layers.SegmentEmbedding(), "norm": layers.LayerNormalization(), "dropout": 0.2}
    embeddings = layers.Embeddings(31, 12, layers.LearnedPositions(13), **sums)
    return EncoderModel(embeddings, encoder, cls_id=5, sep_id=6, **parts)


def plain_vit():
    encoder = layers.Encoder(2, 3, 17, dropout=0.0, activation="gelu", normalize_first=True)
    return VisionTransformer((6, 10), (2, 5), 12, encoder, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "case", "described"),
    [
        (plain_gpt2, "gpt2", {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
        (plain_bert, "bert-named", {"id2label": {0: "a", 1: "b", 2: "c"}, "hidden_dropout_prob": 0.2}),
        (plain_vit, "vit-classes", {"id2label": {i: f"LABEL_{i}" for i in range(5)}}),
    ],
)
def test_model_of_plain_arguments_is_written(make, case, described, tmp_path, caplog):
    family = CONFIGS[case]["model_type"]
    model = randomized(family, make())
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    assert_same_tensors(family, again, model)
    if case.startswith("bert"):
        assert (again.embeddings.dropout, again.head.labels, again.head.dropout) == (
            0.2,
            ["a", "b", "c"],
            0.1,
        )
        assert (again.pad_id, again.cls_id, again.sep_id) == (0, 5, 6)
    pytest.importorskip("torch")
    there = loaded_without_warnings(tmp_path / "new", CONFIGS[case], caplog)
    assert {key: getattr(there.config, key) for key in described} == described
    assert difference(model, there) <= TOLERANCE[case]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "olmo2"])
def test_decoding_step_by_step_is_all_at_once(case):
    model = own_model(CONFIGS[case])
    ids, _ = rows_of()
    expected = np.asarray(model(ids))
    cache = model.decoder.empty_cache(*ids.shape)
    for i in range(ids.shape[1]):
        logits, cache = model.decode(ids[:, i : i + 1], cache, i)
        np.testing.assert_allclose(np.asarray(logits)[:, 0], expected[:, i], atol=1e-4)


# Searches. With few ids, texts end. Ours stops where no open hypothesis can win any more; that is `early_stopping` of
# "never" in transformers, whose default guesses. Both count the end in the length of "length".

FEW = {"vocab_size": 13, "bos_token_id": 0, "eos_token_id": 11, "pad_token_id": 12}
PAD_STARTS = {"pad_token_id": 12, "decoder_start_token_id": 12}
WRITERS = {
    # case: configuration, the number of random models, options of both libraries
    "gpt2": (FEW, 20),
    "llama": (FEW, 20),
    "t5": ({"vocab_size": 13, "num_decoder_layers": 2}, 20),  # transformers: as many as the encoder has
    "marian": ({**PAD_STARTS, "vocab_size": 13, "scale_embedding": False}, 20),
    **{case: (FEW, 3) for case in DECODERS if "-" not in case},
    # The ends of a text and of a turn, as Llama 3 and Gemma have them.
    "gemma2-many-ends": ({**FEW, "eos_token_id": [11, 3, 7, 5]}, 3),
    **{case: ({"vocab_size": 13}, 3) for case in ("bart", "mbart", "m2m_100", "pegasus")},
}
SEARCHES = {
    "greedy": (Greedy(), {}),
    "beam": (Beam(4, 1.0, normalization="length"), BEAM),
    "beam-without-penalty": (Beam(4, 0.0, normalization="length"), {**BEAM, "length_penalty": 0.0}),
}
SEARCHED = [(case, search) for case in WRITERS for search in ("greedy", "beam")]


@pytest.mark.parametrize(
    ("case", "search"), [*SEARCHED, ("gpt2", "beam-without-penalty"), ("llama", "beam-without-penalty")]
)
@pytest.mark.sampled
def test_searches_find_the_texts_of_transformers(case, search, transformers, tmp_path):
    changes, models = WRITERS[case]
    config = {**CONFIGS[case.removesuffix("-many-ends")], **changes}
    family = FAMILIES[config["model_type"]]
    strategy, options = SEARCHES[search]
    compared = []
    for seed in range(models):
        there = torch_model(config, seed)
        there.save_pretrained(tmp_path / str(seed))
        if seed == 0:
            model = from_huggingface(tmp_path / "0")
            rules, language = {}, np.full((4, 1), 9)
            if case == "marian":  # as its generation_config.json says
                rules = {"constraints": [ExcludeTokens([model.pad_id])]}
                options = {**options, **WITHOUT_PADDING, "bad_words_ids": [[model.pad_id]]}
            if case in ("bart", "mbart", "m2m_100", "pegasus"):  # a language's id begins each text
                rules = {"prefix": language}
                options = {**options, "forced_eos_token_id": None, "forced_bos_token_id": 9}
        else:
            stored, tables = stored_tensors(tmp_path / str(seed)), family.make_tables(model)
            fill_weights(family.make_tensors(model), stored, family.prefix, family.ignored, tables)
        ids, real = rows_of(seed, model.pad_id, lowest=3, end=11)
        ends = [model.eos_id, *getattr(model, "stop_ids", ())]
        expected = torch_texts(there, ids, real, LONGEST, ends, pad_token_id=model.pad_id, **options)
        compared += zip(own_texts(model, ids, strategy, LONGEST, **rules), expected, strict=True)
    clear = [(text, other) for text, (other, margin) in compared if margin > CLEAR]
    assert len(clear) > 0.8 * len(compared)
    for text, other in clear:
        assert text == other
    assert len({len(text) for text, _ in clear}) > 1 or models < 20


# What the files of a folder say and no model knows.

OF_FAMILY = {config["model_type"]: case for case, config in reversed(CONFIGS.items())}
BESIDE = {
    "preprocessor_config.json": {"size": 6, "image_mean": [0.1, 0.2, 0.3]},
    "chat_template.jinja": "{{ messages }}\n",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
}
# Of config.json: an id and a dropout that only other classes read, and the search of older checkpoints.
KEYS = {"mask_token_id": 4, "summary_first_dropout": 0.3, "num_beams": 3}
IDS = {"bos_token_id": None, "pad_token_id": EOS, "eos_token_id": EOS}


@pytest.mark.parametrize("family", OF_FAMILY)
@pytest.mark.sampled
def test_what_a_folder_says_is_written_again(family, tmp_path):
    family = FAMILIES[family]
    said = {**CONFIGS[OF_FAMILY[family.model_type]], **KEYS}
    said |= {key: 0.25 for key, _ in family.rows.values() if "drop" in str(key)}
    said |= {"max_position_embeddings": 96} if "max_position_embeddings" in family.guessed_keys else {}
    ends = {"eos_token_id": [EOS, 7]} if LanguageModel in family.model_classes else {}
    said |= IDS if ends else {}
    generation = {"max_new_tokens": 5, "do_sample": True, "pad_token_id": 3, **ends}
    files = {**BESIDE, "generation_config.json": generation, "config.json": said}
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 96}')
    (tmp_path / "additional_chat_templates").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    checkpoint = Checkpoint(tmp_path)
    with without_memory(initialize=False):
        model = family.make_model(checkpoint.model_config())
    keep_files(model, checkpoint)
    kept = model.checkpoint_files["tokenizer_config.json"]
    # A language model also keeps whether a prompt begins with `bos_token`.
    assert kept["model_max_length"] == 96 and ("add_bos_token" in kept) is (
        LanguageModel in family.model_classes
    )
    (tmp_path / "own").mkdir()
    config = family.make_config(model)
    write_files(tmp_path / "own", model.checkpoint_files, config)
    del files["config.json"]
    for name, content in files.items():
        text = (tmp_path / "own" / name).read_text()
        assert (text if isinstance(content, str) else json.loads(text)) == content
    without = {*IGNORED["config.json"], *OF_HEADS} - {*KEYS, *family.guessed_keys}
    known = {*family.known_keys, *KEYS}
    expected = {key: value for key, value in {**said, **ends}.items() if key not in without and key in known}
    assert {key: config.get(key) for key in expected} == expected
