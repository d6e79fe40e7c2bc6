"""Folders that are wrong, damaged or hostile are refused: a message names the file, the key or the tensor."""

import json
import shutil

import numpy as np
import pytest
from families import CONFIGS, EOS, LINEAR, LLAMA3, VOCAB, WEIGHTS, change_config, change_tensors, own_model
from safetensors.numpy import load_file, save_file

from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.tokenizers.added_tokens import read_added_tokens

INDEX = "model.safetensors.index.json"
HUGE = 10**12


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function from a case to a copy of the folder of its model, to be changed; each model is written once."""
    written = {}

    def folder_of(case, target):
        if case not in written:
            written[case] = tmp_path_factory.mktemp(case) / "model"
            one_layer = {key: 1 for key in ("n_layer", "num_hidden_layers") if key in CONFIGS[case]}
            model = own_model({**CONFIGS[case], **one_layer})
            to_huggingface(model, written[case], family=CONFIGS[case]["model_type"])
        return shutil.copytree(written[case], target)

    return folder_of


@pytest.fixture
def folder(folder_of, tmp_path):
    """The folder of a language model with tied embeddings, to be changed."""
    return folder_of("gpt2", tmp_path / "copy")


def refused(folder, **kwargs):
    """Returns the message with which a folder is refused."""
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder, **kwargs)
    return str(caught.value)


# Configurations.

TAKEN_APART = {"0": [1]}
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}
LONG = {"rope_type": "longrope", "factor": 2.0}
# fmt: off
WRONG_CONFIGS = [
    # case, changes of config.json, part of the message
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ("gpt2", {"activation_function": "mish"}, "activation_function='mish'"),
    ("gpt2", {"activation_function": ["relu"]}, "must describe a 'gpt2' model"),
    ("gpt2", {"n_head": 4}, "n_embd=15, n_head=4"),
    ("marian", {"num_hidden_layers": 3}, "num_hidden_layers=3"),
    ("t5", {"num_hidden_layers": 3}, "num_hidden_layers=3"),
    ("t5", {"eos_token_id": 0}, "eos_token_id=0, pad_token_id=0"),
    ("marian", {"eos_token_id": 30}, "eos_token_id=30, pad_token_id=30"),
    ("t5", {"dense_act_fn": "gelu_new"}, "dense_act_fn='gelu_new'"),
    ("t5", {"is_gated_act": True}, "is_gated_act=True"),
    ("t5", {"relative_attention_max_distance": 4}, "relative_attention_max_distance=4"),
    ("gpt2", {"n_head": "two"}, "n_head"),
    ("gpt2", {"n_layer": 0}, "n_layer=0"),
    ("gpt2", {"n_layer": HUGE}, "`n_layer` of config.json must be at most"),
    ("gpt2", {"vocab_size": 3_000_000_000}, "`vocab_size` of config.json must be at most 1000, "),
    ("gpt2", {"vocab_size": [1]}, "vocab_size"),
    ("gpt2", {"eos_token_id": {}}, "eos_token_id"),
    ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}"),
    ("gpt2", {"model_type": "gpt3"}, f"must be one of {sorted(FAMILIES)}. Received: model_type='gpt3'"),
    ("gpt2", {"bos_token_id": VOCAB}, f"from 0 to {VOCAB - 1}. Received: bos_id={VOCAB}"),
    ("llama", {"hidden_act": "mish"}, "hidden_act='mish'"),
    ("llama", {"num_key_value_heads": 4}, "num_heads=6, num_key_value_heads=4"),
    ("llama", {"rope_parameters": LONG}, "rope_type='longrope'"),
    ("llama", {"rope_parameters": {**LINEAR, "warp": 2.0}}, "Received: warp=2.0"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "`factor` must be in the 'linear' rope"),
    ("llama", {"rope_parameters": {**LLAMA3, "low_freq_factor": 5.0}}, "low_frequency_factor=5.0"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("mistral", {"sliding_window": "wide"}, "sliding_window"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types=['full"),
    ("mistral", {"layer_types": ["full_attention"] * 2, "sliding_window": 3}, "layer_types=['full"),
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping=5.0"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "architectures=['Gemma3ForCausalLM']"),
    ("gemma3_text", {"architectures": ["Gemma3TextModel"]}, "architectures=['Gemma3TextModel']"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "['LlamaForSequenceClassification']"),
    ("qwen2", {"use_mrope": True}, "use_mrope=True"),
    ("gemma2", {"sliding_window_size": 77}, "must be `sliding_window`, which is the key that is read."),
    ("qwen3", {"num_experts": 8}, "`num_experts` of config.json must be a key that the library knows."),
    ("t5", {"architectures": ["T5EncoderModel"]}, "architectures=['T5EncoderModel']"),
    ("ernie-Model", {"use_task_id": True}, "use_task_id=True"),
    ("bert-masked", {"rotary_dim": 4}, "Received: rotary_dim=4"),
    ("qwen2", {"layer_types": ["full_attention"]}, "for each of its 2 layers"),
    ("qwen2", {"layer_types": ["linear_attention"] * 2}, "linear_attention"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "another type"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "soft_cap=-1.0"),
    ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 0}, "another type"),
    ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj='mish'"),
    ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder=False"),
    ("t5", {"d_kv": 0}, "d_kv=0"),
    ("t5", {"eos_token_id": None}, "eos_token_id=None"),
    ("t5", {"eos_token_id": [7, 8]}, "say which with `eos_id=`. Received: eos_token_id=[7, 8]"),
    ("t5", {"relative_attention_num_buckets": 7}, "num_buckets=7"),
    ("t5", {"pad_token_id": 31}, "pad_id=31"),
    ("marian", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ("marian", {"decoder_ffn_dim": 14}, "decoder_ffn_dim=14"),
    ("marian", {"decoder_attention_heads": 2}, "decoder_attention_heads=2"),
    ("marian", {"decoder_vocab_size": 37}, "decoder_vocab_size=37"),
    ("marian", {"normalize_before": True}, "normalize_before=True"),
    ("marian", {"max_position_embeddings": 0}, "max_position_embeddings=0"),
    ("mbart", {"normalize_before": False}, "normalize_before=False"),
    ("bert-masked", {"is_decoder": True}, "is_decoder=True"),
    ("bert-masked", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ("bert-masked", {"pruned_heads": TAKEN_APART}, f"pruned_heads={TAKEN_APART}"),
    ("bert-masked", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ("bert-masked", {"architectures": ["BertForNextSentencePrediction"]}, "['BertForNextSentencePrediction']"),
    ("bert-masked", {"num_attention_heads": 4}, "num_attention_heads=4"),
    ("bert-masked", {**CLASSIFIER, "id2label": {"1": "a", "2": "b"}}, "{'1': 'a', '2': 'b'}"),
    ("bert-masked", {**CLASSIFIER, "id2label": {"0": 0, "1": "a"}}, "id2label=[0, 'a']"),
    ("roberta-Model", {"pad_token_id": HUGE}, "must be an integer from -1 to"),
    ("roberta-Model", {"pad_token_id": [1]}, "must be an integer from -1 to"),
    ("whisper", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ("whisper", {"num_mel_bins": HUGE}, "`num_mel_bins` of config.json must be at most"),
    ("whisper", {"max_source_positions": 0}, "max_source_positions=0"),
    ("whisper", {"decoder_start_token_id": EOS}, f"eos_token_id={EOS}, pad_token_id={EOS}"),
    ("m2m_100", {"pad_token_id": 0}, "`pad_token_id` of config.json must be 1"),
    ("modernbert-Model", {"pad_token_id": None}, "`pad_token_id` of config.json must be one id"),
    ("mbart", {"pad_token_id": None}, "`pad_token_id` of config.json must be one id"),
    ("distilbert-Model", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds=True"),
    ("mpnet-Model", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64"),
    ("vit-classes", {"qkv_bias": False}, "qkv_bias=False"),
    ("vit-classes", {"num_attention_heads": 5}, "hidden_size=12, num_attention_heads=5"),
    ("vit-classes", {"image_size": [6, 9]}, "image_size=(6, 9), patch_size=(2, 5)"),
    ("vit-classes", {"num_channels": 0}, "num_channels=0"),
]
WRONG_FOR_TENSORS = [
    ("bert-masked", CLASSIFIER, "'classifier.weight' is missing"),
    ("bert-masked", CLASSIFIER, "'bert.pooler.dense.weight' is missing"),
    ("bert-masked", CLASSIFIER, "'cls.predictions.bias' is left over"),
    ("electra-Model", {"embedding_size": 8}, "shape (31, 7), not (31, 8)"),
    ("vit-classes", {"id2label": {"0": "one"}}, "'classifier.weight' has shape (5, 12), not (1, 12)"),
    ("vit-classes", {"architectures": ["ViTModel"]}, "'classifier.bias' is left over"),
]
# fmt: on


def of_rows(rows):
    named = [pytest.param(*row, id=f"{row[0]}-{str(row[1])[:40]}") for row in rows]
    return pytest.mark.parametrize(("case", "changes", "expected"), named)


@of_rows(WRONG_CONFIGS)
def test_wrong_configuration_is_named(case, changes, expected, tmp_path):
    architectures = list(FAMILIES[CONFIGS[case]["model_type"]].architectures[:1])
    config = {"architectures": architectures, **CONFIGS[case]}
    config.pop("has_pooler", None)
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    save_file({"a": np.zeros(1, "float32")}, tmp_path / WEIGHTS)
    assert expected in refused(tmp_path)


@of_rows(WRONG_FOR_TENSORS)
def test_configuration_that_the_tensors_contradict_is_named(folder_of, case, changes, expected, tmp_path):
    folder = folder_of(case, tmp_path / "model")
    change_config(folder, **changes)
    assert expected in refused(folder)


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("multi_label_classification", {"num_labels": 1}),
        ("regression", {"num_labels": 3}),
        ("regression", {"id2label": {"0": "a", "1": "b", "2": "c"}}),
    ],
)
def test_another_problem_than_the_labels_fit_is_refused(problem, labels):
    with pytest.raises(ValueError, match=f"`problem_type` .* problem_type={problem!r}"):
        own_model({**CONFIGS["bert-classes"], "problem_type": problem, **labels})


# Tensors.


NORM = "transformer.ln_f.weight"


@pytest.mark.parametrize(("change", "expected"), [
    (lambda array: {}, f"{NORM!r} is missing"),
    (lambda array: {NORM: array, "what.bias": array}, "'what.bias' is left over"),
    (lambda array: {NORM: array, "h.0.attn.bias_k": array}, "'h.0.attn.bias_k' is left over"),
    (lambda array: {NORM: array[:7]}, f"{NORM!r} has shape (7,), not (15,)"),
    (lambda array: {NORM: array[None]}, f"{NORM!r} has shape (1, 15), not (15,)"),
    (lambda array: {NORM: array.astype("int8")}, f"{NORM!r} is I8, no float"),
    (lambda array: {NORM: array, "ln_f.weight": array}, "'ln_f.weight' is left over"),
], ids=["missing", "left-over", "no-buffer", "shape", "rank", "integers", "twice"])  # fmt: skip
def test_tensor_that_does_not_fit_is_named(folder, change, expected):
    change_tensors(folder, lambda tensors: {**change(tensors.pop(NORM)), **tensors})
    assert refused(folder).endswith(f"Received: {expected}.")


def test_ten_tensors_at_most_are_named(folder):
    tensors = load_file(folder / WEIGHTS)
    change_tensors(folder, lambda tensors: {"a": np.zeros(2, "float32"), NORM: np.zeros((2, 3))})
    message = refused(folder)
    assert "'a' is left over" in message
    assert f"{NORM!r} has shape (2, 3)" in message
    assert message.count(" is missing") == 8
    assert message.endswith(f"; and {len(tensors) - 1 - 8} more.")


def test_untied_model_needs_its_projection(folder):
    change_config(folder, tie_word_embeddings=False)
    assert refused(folder).endswith("Received: 'lm_head.weight' is missing.")


def test_missing_tensor_of_a_vision_transformer_is_named(folder_of, tmp_path):
    folder = folder_of("vit-classes", tmp_path / "vit")
    change_tensors(folder, lambda t: {name: a for name, a in t.items() if name != "vit.embeddings.cls_token"})
    assert "'vit.embeddings.cls_token' is missing" in refused(folder)


# Files.


def test_pickled_weights_are_refused(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    message = refused(folder)
    assert "such a file can run code" in message and "pytorch_model.bin" in message
    assert "save_pretrained" in message


def damage(path):
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(("change", "expected"), [
    (lambda f: (f / WEIGHTS).unlink(), f"`folder` must hold {WEIGHTS} or {INDEX}"),
    (lambda f: damage(f / WEIGHTS), f"{WEIGHTS}: Error while deserializing header"),
    (lambda f: (f / "config.json").unlink(), "Cannot read"),
    (lambda f: (f / "config.json").write_text("{}"), "model_type=None"),
], ids=["none", "damaged", "no-config", "no-type"])  # fmt: skip
def test_folder_without_a_checkpoint_is_refused(folder, change, expected):
    change(folder)
    assert expected in refused(folder)


@pytest.mark.parametrize(("places", "expected"), [
    ({"a": "../model-1.safetensors"}, "Received: '../model-1.safetensors' in"),
    ({"a": "/etc/passwd"}, "Received: '/etc/passwd' in"),
    ({"a": 3, "b": "one.safetensors"}, "Received: 3 in"),
    ({"a": ["one.safetensors"]}, "Received: ['one.safetensors'] in"),
    ({}, "Received: None in"),
    (None, "Received: None in"),
    ({"a": "model-2.safetensors"}, "Cannot read"),
    ({"a": "one.safetensors", "b": "two.safetensors"}, "is stored twice, in"),
], ids=["above", "absolute", "number", "list", "empty", "none", "missing", "twice"])  # fmt: skip
def test_index_of_wrong_files_is_refused(folder, places, expected):
    shutil.copy(folder / WEIGHTS, folder / "one.safetensors")
    (folder / WEIGHTS).rename(folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    assert expected in refused(folder)


# Tokenizers.


def test_model_that_reads_no_text_has_no_tokenizer(tmp_path):
    assert [name for name, family in FAMILIES.items() if family.tokenizer is None] == ["vit"]
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    message = r"must hold a model that reads text and whose tokenizer .* a 'vit' model"
    with pytest.raises(ValueError, match=message):
        tokenizers_from_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("llama", "without tokenizer.model or tokenizer.json or vocab.json."),
        ("gpt2", "without tokenizer.json or vocab.json."),
        ("t5", "without spiece.model or tokenizer.json."),
        ("bert", "without tokenizer.json or vocab.txt or sentencepiece.bpe.model."),
        ("marian", "without source.spm, target.spm, vocab.json."),
        ("mbart", "without "),
    ],
)
def test_folder_without_the_files_of_its_tokenizer_is_refused(family, missing, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(ValueError, match="must have the files of the model's tokenizer") as caught:
        tokenizers_from_huggingface(tmp_path)
    assert missing in str(caught.value)


def test_an_added_token_of_blanks_that_takes_more_blanks_is_refused(tmp_path):
    token = {"content": "  ", "lstrip": False, "rstrip": True, "special": False}
    config = {"added_tokens_decoder": {"2": token}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="white space alone must not take the blanks"):
        read_added_tokens(tmp_path, ["a", "b"])
    config["added_tokens_decoder"]["2"]["rstrip"] = False
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    pieces, found = read_added_tokens(tmp_path, ["a", "b"])
    assert pieces == ["a", "b", "  "] and [each.content for each in found] == ["  "]
