"""Whisper: its padding, convolutions and keys; the ids of its prompts, its spectrogram and its tokenizer."""

import json
import shutil

import keras
import numpy as np
import pytest
from contracts import refuses
from families import CONFIGS, WEIGHTS, WHISPER, change_config, change_tensors, inputs_of, own_model
from safetensors.numpy import load_file
from test_byte_level import RECORDED, folder_of

from keras_transformer.cli.convert import convert
from keras_transformer.decoding import SpeechIds
from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    preprocessing_from_huggingface,
    speech_ids_from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
    transcriber_options,
)
from keras_transformer.layers import LogMelSpectrogram

CONFIG = CONFIGS["whisper"]
END, START = "<|endoftext|>", "<|startoftranscript|>"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A model, and a folder that it was written to; do not change them."""
    model, folder = own_model(CONFIG), tmp_path_factory.mktemp("whisper") / "new"
    to_huggingface(model, folder)
    return model, folder


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({}, {}, (28, 28, 29)),
        ({"pad_token_id": None}, {}, (28, 28, 29)),
        ({"eos_token_id": [29]}, {}, (28, 28, 29)),
        ({"pad_token_id": 30}, {}, (30, 28, 29)),
        ({}, {"pad_id": 7}, (7, 28, 29)),
    ],
)
def test_the_end_is_no_padding(changes, given, expected):
    model = FAMILIES["whisper"].make_model({**CONFIG, **changes}, **given)
    assert (model.pad_id, model.bos_id, model.eos_id) == expected


@pytest.mark.parametrize(("case", "pad_id"), [("whisper", 29), ("whisper-own-padding", 30)])
def test_padding_is_written_as_transformers_has_it(case, pad_id):
    config = FAMILIES["whisper"].make_config(own_model(CONFIGS[case]))
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (pad_id, 29, 29)


def test_kernels_are_transposed_and_keys_have_no_bias(written):
    model, folder = written
    stored = load_file(folder / WEIGHTS)
    for i, convolution in enumerate(model.source.convolutions, 1):
        kernel = keras.ops.convert_to_numpy(convolution.kernel)
        np.testing.assert_array_equal(stored[f"model.encoder.conv{i}.weight"], kernel.transpose(2, 1, 0))
    names = [name for name in stored if "k_proj" in name]
    assert len(names) == 4 and all(name.endswith("weight") for name in names)


def test_a_bias_of_keys_changes_no_output(written, tmp_path):
    model, folder = written
    trained = from_huggingface(folder)
    for layer in (*trained.encoder.layers, *trained.decoder.layers):
        layer.self_attention.key_dense.bias.assign(layer.self_attention.key_dense.bias + 3.0)
    to_huggingface(trained, tmp_path / "new")
    inputs, _, _ = inputs_of(model)
    expected = keras.ops.convert_to_numpy(trained(inputs))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(inputs)), expected, atol=1e-4)
    np.testing.assert_array_equal(from_huggingface(tmp_path / "new")(inputs), model(inputs))


def test_the_positions_of_the_source_are_a_table_that_is_not_trained(written):
    model, folder = written
    table = load_file(folder / WEIGHTS)["model.encoder.embed_positions.weight"]
    np.testing.assert_array_equal(table, keras.ops.convert_to_numpy(model.source.positions.embeddings))
    assert [each.path.rpartition("/")[2] for each in model.source.non_trainable_weights] == ["embeddings"]
    assert model.target.positions.trainable


def test_shorter_audio_is_read_and_longer_audio_is_refused(written):
    model, _ = written
    frames = np.ones((2, 15, 5), "float32")
    assert model.encode(frames[:, :4]).states.shape == (2, 2, 18)
    refuses("`x` must be at most max_length=7 long", model.encode, frames)


def test_a_model_is_saved_with_its_frozen_positions(written, tmp_path):
    model, _ = written
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    inputs, _, _ = inputs_of(model)
    np.testing.assert_array_equal(again(inputs), model(inputs))
    assert len(again.non_trainable_weights) == len(model.non_trainable_weights)


def test_its_folder_becomes_a_transcriber(written, tmp_path):
    folder = tmp_path / "there"
    shutil.copytree(written[1], folder)
    ids = {"eos_token_id": 29, "no_timestamps_token_id": 27, "lang_to_id": {"<|ko|>": 20}}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": 5, "n_fft": 100}))
    assert transcriber_options(folder)["spectrogram"].num_mel_bins == 5
    refuses(r"whisper.*tokenizer|tokenizer.json", convert, folder, tmp_path / "served")


# The ids of prompts.


@pytest.fixture
def read(tmp_path):
    def read(**config):
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
        return speech_ids_from_huggingface(tmp_path)

    return read


LANGUAGES = {"<|en|>": 11, "<|ko|>": 12}
TASKS = {"translate": 13, "transcribe": 14}
SEVERAL = {"lang_to_id": LANGUAGES, "task_to_id": TASKS, "no_timestamps_token_id": 15}


def test_each_key_has_an_attribute(read):
    ids = read(
        **SEVERAL, suppress_tokens=[1, 2], begin_suppress_tokens=[3], alignment_heads=[[3, 1], [4, 2]],
        max_initial_timestamp_index=50, prev_sot_token_id=16, is_multilingual=True, language="<|ko|>",
        task="translate",
    )  # fmt: skip
    assert ids == SpeechIds(
        {"en": 11, "ko": 12}, TASKS, "ko", "translate", 15, (1, 2), (3,), 50, 16, ((3, 1), (4, 2))
    )
    assert read() == SpeechIds()
    assert read(suppress_tokens=None, begin_suppress_tokens=7).suppressed_first == (7,)


def test_prompts_name_the_language_the_task_and_whether_there_are_times(read):
    ids = read(**SEVERAL)
    assert ids.prompt("ko") == [12, 14, 15]
    assert ids.prompt("en", "translate", timestamps=True) == [11, 13]
    for language, task, times, rule in (
        (None, None, False, r"`language` must be one of en, ko\. Received: language=None"),
        ("korean", None, False, "language='korean'"),
        ("ko", "sing", False, r"`task` must be one of transcribe, translate\. Received: task='sing'"),
    ):
        refuses(rule, ids.prompt, language, task, times)


def test_a_model_of_english_alone_has_neither_language_nor_task(read):
    ids = read(**SEVERAL, is_multilingual=False)
    assert ids.prompt() == [15] and ids.prompt(timestamps=True) == []
    refuses(r"`language` must be one of None\. Rec", ids.prompt, "en")
    refuses("`timestamps` must be True for a model", read().prompt)


@pytest.mark.parametrize(
    "named", [{"language": "ko"}, {"forced_decoder_ids": [[1, 12], [2, 14], [3, 15]]}], ids=["now", "old"]
)
def test_a_file_may_say_what_is_asked_where_nobody_says(read, named):
    ids = read(**SEVERAL, **named)
    assert ids.prompt() == [12, 14, 15] and ids.prompt("en") == [11, 14, 15]
    assert read(**SEVERAL, forced_decoder_ids=[[1, None], [2, 14]]).language is None


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("lang_to_id", {"<|ko|>": "12"}, "an object of ids"),
        ("task_to_id", [1], "an object of ids"),
        ("no_timestamps_token_id", "15", "an integer"),
        ("begin_suppress_tokens", ["a"], "an id or a list of ids"),
        ("alignment_heads", [[1, 2, 3]], "a list of pairs of integers"),
        ("alignment_heads", [[1, -2]], "a list of pairs of integers"),
        ("forced_decoder_ids", [1], "a list of lists"),
        ("is_multilingual", 1, "true or false"),
        ("language", ["ko"], "a str"),
        ("max_initial_timestamp_index", -1, "an integer from 0"),
    ],
)
def test_other_values_are_refused(read, key, value, rule):
    refuses(rf"`{key}` of .*generation_config.json must be {rule}", read, **{key: value})


# Spectrograms.


def spectrogram(folder, **config):
    config = {"feature_extractor_type": "WhisperFeatureExtractor", **config}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return preprocessing_from_huggingface(folder)


def test_a_spectrogram_is_described_by_its_file(tmp_path):
    assert spectrogram(tmp_path).numbers() == LogMelSpectrogram().numbers()
    changes = {"feature_size": 7, "sampling_rate": 22050, "n_fft": 512, "hop_length": 128}
    beside = {"chunk_length": 30, "mel_filters": [[0.0]], "padding_value": 0.0, "dither": 0.0, "n_samples": 5}
    found, expected = (
        spectrogram(tmp_path, **changes, **beside),
        LogMelSpectrogram(7, 22050, 512, 128, 0.0, 8000.0),
    )
    assert found.numbers() == expected.numbers()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"dither": 0.1}, "`dither` of preprocessor_config.json must be 0.0"),
        ({"padding_value": -1.0}, "`padding_value` of .* must be 0.0"),
        ({"do_normalize": True}, "`do_normalize` of .* must be a key that the library knows"),
        ({"n_fft": "400"}, "`n_fft` of .* must be an integer from 1 to"),
        ({"sampling_rate": 8000}, r"`max_freq` must be a number above 0, at most 4000\.0"),
    ],
)
def test_other_spectrograms_are_refused(changes, rule, tmp_path):
    refuses(rule, spectrogram, tmp_path, **changes)


# Tokenizers.


def whisper_tokenizer():
    """GPT-2's recorded tokenizer.json with an empty piece, tokens of prompts, and times."""
    recorded = RECORDED["gpt2"]["tokenizer"]
    pieces = sorted(recorded["model"]["vocab"], key=recorded["model"]["vocab"].get)
    pieces = [*(piece for piece in pieces if piece not in (END, "<|im_start|>", "<tool_call>")), "", END]
    model = {**recorded["model"], "vocab": {piece: i for i, piece in enumerate(pieces)}}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = [(END, True), (START, True), ("<|ko|>", True), ("<|0.00|>", False)]
    added = [
        {"id": len(pieces) - 1 + i, "content": token, "special": special, **plain}
        for i, (token, special) in enumerate(named)
    ]
    return {**recorded, "model": model, "added_tokens": added}


def test_tokens_of_a_prompt_are_plain_text_in_a_text_and_not_in_an_output(tmp_path):
    folder = folder_of(tmp_path, "whisper", whisper_tokenizer(), tokenizer_class="WhisperTokenizer")
    (tokenizer,) = tokenizers_from_huggingface(folder)
    end = tokenizer.vocab_size - 4
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (end,) * 4
    text = f" 두 개의{START} <|ko|>"
    ids = tokenizer.tokenize(text).numpy().tolist()
    assert max(ids) < end - 1  # the empty piece is before the end
    shown = tokenizer.detokenize([[end + 1, end + 2, end - 1, *ids, end]]).numpy()[0].decode()
    assert shown == text


def test_a_tokenizer_is_written_beside_a_model_that_pads_with_another_id(tmp_path):
    described = tmp_path / "described"
    (tokenizer,) = tokenizers_from_huggingface(folder_of(described, "whisper", whisper_tokenizer()))
    size, end = tokenizer.vocab_size, tokenizer.eos_id
    config = {**WHISPER, "model_type": "whisper", "vocab_size": size, "decoder_start_token_id": end + 1}
    model = own_model({**config, **dict.fromkeys(("pad_token_id", "eos_token_id"), end)})
    to_huggingface(model, tmp_path / "new", tokenizers=(tokenizer,))
    (again,) = tokenizers_from_huggingface(tmp_path / "new")
    assert again.pieces(range(size)) == tokenizer.pieces(range(size)) and again.pad_id == end
    model.pad_id = 5
    with pytest.raises(ValueError, match=f"pad_id=5, and a tokenizer of pad_id={end}"):
        FAMILIES["whisper"].tokenizer.write((tokenizer,), tmp_path, model)


def test_another_class_of_tokenizers_is_refused(tmp_path):
    folder = folder_of(tmp_path, "whisper", whisper_tokenizer(), tokenizer_class="GPT2Tokenizer")
    refuses(r"`tokenizer_class` of .* must be one of .*WhisperTokenizer", tokenizers_from_huggingface, folder)


def test_tensors_without_their_prefix_are_read(written, tmp_path):
    model, _ = written
    to_huggingface(model, tmp_path / "new")
    change_tensors(tmp_path / "new", lambda stored: {n.removeprefix("model."): x for n, x in stored.items()})
    change_config(tmp_path / "new", forced_decoder_ids=[[1, None]], apply_spec_augment=True)
    inputs, _, _ = inputs_of(model)
    np.testing.assert_array_equal(from_huggingface(tmp_path / "new")(inputs), model(inputs))
