"""The keys of a checkpoint's files: each is read, refused, or listed as without effect."""

import inspect
import json
import logging
from pathlib import Path

import pytest
from families import BERT, own_model
from pieces import described

from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    preprocessing_from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.generation import KNOWN, REFUSED
from keras_transformer.huggingface.known_keys import IGNORED, TOKENIZERS, check_keys

DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoint_keys.md"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]
# fmt: off
# The keys of published config.json files, of which no value matters here.
PUBLISHED = {
    "bert": (
        "architectures attention_probs_dropout_prob classifier_dropout directionality gradient_checkpointing "
        "hidden_act hidden_dropout_prob hidden_size initializer_range intermediate_size layer_norm_eps "
        "max_position_embeddings model_type num_attention_heads num_hidden_layers pad_token_id pooler_fc_size "
        "pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
        "position_embedding_type torch_dtype transformers_version type_vocab_size use_cache vocab_size "
        "_name_or_path id2label label2id"
    ),
    "roberta": "eos_token_id bos_token_id output_past tokenizer_class problem_type finetuning_task",
    "distilbert": "activation attention_dropout dim dropout hidden_dim n_heads n_layers qa_dropout seq_classif_dropout "
        "sinusoidal_pos_embds tie_weights_",
    "electra": "embedding_size summary_activation summary_last_dropout summary_type summary_use_proj",
    "modernbert": (
        "attention_bias classifier_activation classifier_bias classifier_dropout classifier_pooling cls_token_id "
        "decoder_bias deterministic_flash_attn embedding_dropout global_attn_every_n_layers global_rope_theta "
        "hidden_activation initializer_cutoff_factor layer_norm_eps local_attention local_rope_theta mlp_bias "
        "mlp_dropout norm_bias norm_eps position_embedding_type reference_compile repad_logits_with_grad sep_token_id "
        "sparse_pred_ignore_index sparse_prediction"
    ),
    "gpt2": (
        "activation_function attn_pdrop embd_pdrop layer_norm_epsilon n_ctx n_embd n_head n_inner n_layer n_positions "
        "reorder_and_upcast_attn resid_pdrop scale_attn_by_inverse_layer_idx scale_attn_weights summary_first_dropout "
        "summary_proj_to_labels task_specific_params author created_date license"
    ),
    "llama": (
        "attention_bias attention_dropout head_dim hidden_act max_position_embeddings mlp_bias num_key_value_heads "
        "pretraining_tp rms_norm_eps rope_scaling rope_theta tie_word_embeddings use_cache unsloth_fixed auto_map "
        "is_llama_config rope_interleaved transformers.js_config max_sequence_length"
    ),
    "qwen2": "max_window_layers sliding_window use_mrope use_sliding_window",
    "phi3": "embd_pdrop original_max_position_embeddings resid_pdrop rope_scaling sliding_window auto_map",
    "gemma": "attention_bias attention_dropout head_dim hidden_act hidden_activation rope_scaling rope_theta",
    "gemma2": "attn_logit_softcapping cache_implementation final_logit_softcapping hidden_activation hidden_act "
        "query_pre_attn_scalar sliding_window sliding_window_size",
    "gemma3_text": "rope_local_base_freq sliding_window_pattern _sliding_window_pattern use_bidirectional_attention "
        "layer_types",
    "t5": "d_ff d_kv d_model decoder_start_token_id dense_act_fn dropout_rate feed_forward_proj initializer_factor "
        "is_encoder_decoder is_gated_act layer_norm_epsilon n_positions num_layers output_past "
        "relative_attention_num_buckets task_specific_params",
    "bart": (
        "_num_labels activation_dropout activation_function add_bias_logits add_final_layer_norm classif_dropout "
        "decoder_layerdrop do_blenderbot_90_layernorm early_stopping encoder_layerdrop extra_pos_embeddings "
        "force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id init_std length_penalty max_length "
        "min_length no_repeat_ngram_size normalize_before normalize_embedding num_beams num_hidden_layers prefix "
        "replacing_rate save_step scale_embedding static_position_embeddings student_decoder_layers unk_token_id"
    ),
    "whisper": (
        "begin_suppress_tokens forced_decoder_ids max_source_positions max_target_positions num_mel_bins "
        "suppress_tokens apply_spec_augment classifier_proj_size mask_feature_length mask_feature_min_masks "
        "mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob median_filter_width "
        "use_weighted_layer_sum"
    ),
    "marian": "bad_words_ids decoder_vocab_size share_encoder_decoder_embeddings mlm_probability",
    "vit": "encoder_stride image_size num_channels patch_size qkv_bias pooler_act pooler_output_size",
}
# fmt: on


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_keys_of_published_checkpoints_are_known(family):
    known = {*FAMILIES[family].known_keys, *KNOWN, *REFUSED}
    check_keys(dict.fromkeys(PUBLISHED[family].split(), 1), known, "")


def test_the_keys_that_transformers_writes_are_known():
    transformers = pytest.importorskip("transformers")
    for name, family in FAMILIES.items():
        config = transformers.AutoConfig.for_model(name).to_dict()
        assert len(config) > 10
        check_keys(config, {*family.known_keys, *KNOWN, *REFUSED}, f"config.json of {name}")


TOKENIZER_CLASSES = (
    *("Bert", "Roberta", "XLMRoberta", "Camembert", "GPT2", "Llama", "Qwen2", "Gemma", "T5", "Marian"),
    *("Bart", "MBart", "MBart50", "Nllb", "M2M100", "Pegasus", "MPNet", "Electra", "DistilBert", "Whisper"),
)


def test_the_options_of_transformers_tokenizers_are_known():
    transformers = pytest.importorskip("transformers")
    kinds = (getattr(transformers, f"{name}Tokenizer") for name in TOKENIZER_CLASSES)
    classes = {each for kind in kinds for each in kind.__mro__ if each.__module__.startswith("transformers")}
    made = [each.__init__ for each in classes if "__init__" in vars(each)]
    names = {key for each in made for key in inspect.signature(each).parameters if not key.endswith("_token")}
    in_no_file = {"self", "args", "kwargs", "vocab", "merges", "_spm_precompiled_charsmap"}
    assert names - in_no_file <= {*TOKENIZERS["tokenizer_config.json"], *IGNORED["tokenizer_config.json"]}


def test_the_document_names_each_key_without_effect():
    text = DOCUMENT.read_text(encoding="utf-8")
    for file, keys in IGNORED.items():
        assert len(keys) == len({*keys})
        first, *rest = file.split(" ")
        name = " ".join([f"`{first}`", *rest])
        assert f"| {name} | " in text, file
        for key in keys:
            assert f"`{key}`" in text, (file, key)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"lowercase_first": True}),
        ("special_tokens_map.json", {"replacements": {"a": "b"}}),
    ],
)
def test_an_unknown_option_of_a_tokenizer_is_a_warning(file, changes, tmp_path, caplog):
    described(tmp_path, "bert")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    path = tmp_path / file
    before = json.loads(path.read_text()) if path.is_file() else {}
    known = {"clean_text": True, "vocab_size": 6, "fix_mistral_regex": False} if "config" in file else {}
    path.write_text(json.dumps({**before, **known, "mask_token": "[MASK]", **dict.fromkeys(changes)}))
    with caplog.at_level(logging.WARNING):
        tokenizers_from_huggingface(tmp_path)  # null says nothing
        assert not caplog.text
        path.write_text(json.dumps({**before, **changes, "other": 1}))
        tokenizers_from_huggingface(tmp_path)
    (key,) = changes
    assert f"{file} has keys that are not known and not read: {key}, other" in caplog.text


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("tokenizer.json", {"second_model": {}}, "`second_model` of tokenizer.json must be a key that"),
        ("tokenizer_config.json", {"fix_mistral_regex": True}, "`fix_mistral_regex` of .* must be False"),
    ],
)
def test_keys_that_may_change_ids_are_refused(file, changes, message, tmp_path):
    described(tmp_path, "bert")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    (tmp_path / file).write_text(json.dumps(changes))
    with pytest.raises(ValueError, match=message):
        tokenizers_from_huggingface(tmp_path)


def test_an_unknown_key_of_config_json_is_refused_unless_it_is_null(tmp_path):
    config = {**BERT, "num_hidden_layers": 1, "architectures": ["BertModel"]}
    to_huggingface(own_model(config), tmp_path / "new")
    path = tmp_path / "new" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rotary_share": None}))
    from_huggingface(tmp_path / "new")
    path.write_text(json.dumps({**config, "rotary_share": 0.5}))
    with pytest.raises(ValueError, match=r"`rotary_share` of config\.json .*Received: rotary_share=0\.5"):
        from_huggingface(tmp_path / "new")


def test_an_unknown_step_of_an_image_processor_is_refused(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_flip_channel_order": true}')
    with pytest.raises(ValueError, match=r"`do_flip_channel_order` of preprocessor_config\.json"):
        preprocessing_from_huggingface(tmp_path)


# Without the window that counts in Qwen 2 and 3 if `use_sliding_window` is true, and the id that mBART falls back to.
OTHER_DEFAULTS = {
    ("qwen2", "sliding_window"),
    ("qwen3", "sliding_window"),
    ("mbart", "decoder_start_token_id"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(family).to_dict()
    # None is a value that other keys give.
    own = {key: default for key, default in FAMILIES[family].rows.values() if default is not None}
    compared = {key for key in own if key in theirs and (family, key) not in OTHER_DEFAULTS}
    assert len(compared) > 5
    assert {key: own[key] for key in compared} == {key: theirs[key] for key in compared}
