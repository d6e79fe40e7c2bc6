"""The keys of a checkpoint's files: which are read, and which change no number.

A key that is in no list might change what the model computes. It is refused, unless its value is None. In the two files
of a tokenizer's options, of which transformers ignores what its class does not know, a warning names it.
docs/checkpoint_keys.md has the lists of `IGNORED`.
"""

import logging

from keras_transformer.checks import LONGEST, check, printable
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there

log = logging.getLogger(__name__)

# Keys without effect, by the files that have them.
IGNORED = {
    "config.json": (
        # Where it comes from, and how it was trained.
        *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "author"),
        *("created_date", "license", "language", "finetuning_task", "task_specific_params"),
        *("initializer_range", "init_std", "initializer_factor", "gradient_checkpointing", "save_step"),
        *("replacing_rate", "mlm_probability", "student_encoder_layers", "student_decoder_layers"),
        *("pretrained_model_name_or_path", "_model_name_or_path", "auto_map", "unsloth_fixed"),
        *("unsloth_version", "unsloth_processed_inputs", "adapters", "is_llama_config"),
        *("transformers.js_config",),
        # How it is computed, to the same numbers.
        *("dtype", "torch_dtype", "use_cache", "attn_implementation", "_attn_implementation"),
        *("torchscript", "_attn_implementation_autoset", "_attn_implementation_internal"),
        *("_experts_implementation", "use_bfloat16", "use_flash_attn", "pretraining_tp"),
        *("chunk_size_feed_forward", "xla_device", "tf_legacy_loss", "return_dict", "output_past"),
        *("output_attentions", "output_hidden_states"),
        # Other ids and classes, and sizes that older versions wrote a second time or that no tensor has.
        *("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "prefix", "label2id"),
        *("_num_labels", "cross_attention_hidden_size", "tie_encoder_decoder", "classifier_dropout"),
        *("n_ctx", "directionality", "summary_activation", "summary_first_dropout", "summary_last_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj", "pooler_fc_size"),
        *("pooler_num_attention_heads", "pooler_type", "pooler_num_fc_layers", "pooler_size_per_head"),
        *("predict_special_tokens", "max_sequence_length"),
    ),
    "config.json of a language model": (
        *("cache_implementation", "embd_pdrop", "hidden_dropout", "_sliding_window_pattern"),
    ),
    "config.json of an encoder-decoder": (
        *("classif_dropout", "add_bias_logits", "extra_pos_embeddings"),
        *("layer_norm_eps", "do_blenderbot_90_layernorm"),
        *("n_positions", "encoder_layerdrop", "decoder_layerdrop"),
    ),
    "config.json of Whisper": (
        # Other classes, how it was trained, and the search of older versions of transformers.
        *("scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment"),
        *("mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob"),
        *("mask_feature_length", "mask_feature_min_masks", "median_filter_width", "forced_decoder_ids"),
    ),
    "config.json of an encoder": (
        *("tie_weights_", "generator_size", "generator_hidden_size", "task_type_vocab_size"),
        *("encoder_stride", "initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile"),
        *("sparse_prediction", "repad_logits_with_grad", "sparse_pred_ignore_index"),
    ),
    "tokenizer_config.json": (
        # Files, versions, and how transformers itself is called.
        *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file"),
        *("spm_file", "full_tokenizer_file", "target_vocab_file", "auto_map", "backend", "is_local"),
        *("local_files_only", "use_fast", "from_slow", "processor_class", "tokenizer_type"),
        *("model_input_names", "verbose", "device", "model_max_length", "max_length", "max_len"),
        *("truncation", "truncation_side", "truncation_strategy", "stride", "padding", "padding_side"),
        *("pad_to_multiple_of", "pad_token_type_id", "cls_token_type_id", "sequence_length"),
        *("return_tensors", "return_token_type_ids", "source_lang", "target_lang", "tgt_lang"),
        *("add_special_tokens", "trust_remote_code", "is_fast", "max_model_input_sizes", "vocab_size"),
        # Options of other classes of tokenizers.
        *("clean_text", "keep_accents", "remove_space", "normalizer_file", "return_attention_mask"),
        # What Whisper's tokenizer puts before a text.
        *("language", "task", "predict_timestamps"),
        # The texts of outputs, which each class of tokenizers here writes in its own way.
        *("clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors", "trim_offsets"),
        *("use_default_system_prompt", "split_special_tokens", "separate_vocabs", "language_codes"),
        *("num_madeup_words", "sp_model_kwargs", "never_split", "mask_token_sent", "wordpieces_prefix"),
        *("max_input_chars_per_word", "model_specific_special_tokens", "unk_id", "source_spm"),
        "target_spm",
    ),
    "tokenizer.json": ("version", "truncation", "padding"),
    "preprocessor_config.json": (
        *("crop_size", "do_convert_rgb", "feature_extractor_type", "image_processor_type"),
        *("processor_class", "_valid_processor_keys", "data_format", "input_data_format", "return_tensors"),
        *("device", "auto_map", "default_to_square", "disable_grouping"),
    ),
    "preprocessor_config.json of Whisper": (
        # The model has the length, and the other keys have the filters.
        *("feature_extractor_type", "processor_class", "return_attention_mask", "padding_side"),
        *("chunk_length", "n_samples", "nb_max_frames", "mel_filters"),
    ),
    "sentence_bert_config.json": ("modality_config", "message_format", "unpad_inputs"),
    "config_sentence_transformers.json": ("__version__", "model_type", "similarity_fn_name"),
    "config.json of a Pooling": ("word_embedding_dimension", "embedding_dimension"),
    "config.json of a Dense": ("in_features",),
    "adapter_config.json": (
        # The tensors tell what is changed, and the rest is for the training.
        *("auto_mapping", "bias", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_config"),
        *("megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision"),
        "target_modules",
        "runtime_config",
    ),
}

# Keys that are read, or refused by their own check. Those of config.json that have a default are in the families.
CONFIG = (
    *IGNORED["config.json"],
    *("model_type", "architectures", "quantization_config", "tokenizer_class", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "id2label", "num_labels"),
    *("problem_type", "pruned_heads", "is_decoder", "add_cross_attention", "is_encoder_decoder"),
    *("sentence_transformers", "sbert_ce_default_activation_function"),
)
ROPE = (
    *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"),
    *("original_max_position_embeddings", "rope_interleaved"),
)
DECODER = (
    *IGNORED["config.json of a language model"],
    *ROPE,
    *("layer_types", "sliding_window", "sliding_window_pattern", "attention_bias", "mlp_bias", "head_dim"),
    *("attention_dropout", "resid_pdrop", "query_pre_attn_scalar", "final_logit_softcapping"),
    *("attn_logit_softcapping", "use_sliding_window", "max_window_layers", "use_mrope"),
    *("use_bidirectional_attention", "rope_local_base_freq", "hidden_act", "hidden_activation"),
    "sliding_window_size",
)
SEQ2SEQ = (
    *IGNORED["config.json of an encoder-decoder"],
    *("normalize_before", "normalize_embedding", "add_final_layer_norm", "static_position_embeddings"),
    *("feed_forward_proj", "scale_decoder_outputs", "num_hidden_layers", "is_gated_act", "dense_act_fn"),
    "force_bos_token_to_be_generated",
)
ENCODER = (*IGNORED["config.json of an encoder"], "position_embedding_type", "use_task_id", "qkv_bias")
SENTENCE_TRANSFORMERS = {
    "sentence_bert_config.json": (
        *("max_seq_length", "do_lower_case", "transformer_task", "module_output_name", "processing_kwargs"),
        *("model_args", "tokenizer_args", "config_args"),
    ),
    "config_sentence_transformers.json": ("prompts", "default_prompt_name"),
    "config.json of a Pooling": (
        *("pooling_mode", "include_prompt", "pooling_mode_cls_token", "pooling_mode_mean_tokens"),
        *("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"),
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    ),
    "config.json of a Dense": (
        *("out_features", "bias", "activation_function", "module_input_name", "module_output_name"),
    ),
}
ADAPTER = (
    *IGNORED["adapter_config.json"],
    *("peft_type", "base_model_name_or_path", "task_type", "r", "lora_alpha", "rank_pattern"),
    *("alpha_pattern", "use_rslora", "init_lora_weights"),
)
# Keys that end with "_token" name special tokens, and are read.
TOKENIZERS = {
    "tokenizer_config.json": (
        *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "do_lower_case"),
        *("strip_accents", "add_prefix_space", "legacy", "add_bos_token", "add_eos_token", "extra_ids"),
        *("src_lang", "chat_template", "tokenizer_class", "do_basic_tokenize", "tokenize_chinese_chars"),
        *("offset", "legacy_behaviour", "fix_mistral_regex"),
    ),
    "special_tokens_map.json": ("additional_special_tokens", "extra_special_tokens"),
    "tokenizer.json": (
        *["added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor", "model"],
    ),
}
PREPROCESSOR = (
    *IGNORED["preprocessor_config.json"],
    *("do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean"),
    *("image_std", "do_center_crop", "do_pad"),
)


def check_keys(config, known, file):
    """Raises `ValueError` for a key of a file that is not among the known ones and has a value.

    Args:
        config: The content of the file, a dict.
        known: The known keys, a container of str.
        file: Name of the file.
    """
    for key, value in config.items():
        name = printable(key, LONGEST)
        rule = f"`{name}` of {file} must be a key that the library knows. Remove it if the model does not need it."
        check(key in known or value is None, rule, **{name: value})


def check_sentence_file(config, kind, file=None):
    """Raises `ValueError` for a key of a file of sentence-transformers that the library does not know.

    Args:
        config: The content of the file, a dict.
        kind: A key of `SENTENCE_TRANSFORMERS`.
        file: Name of the file; `kind` when None.
    """
    check_keys(config, (*SENTENCE_TRANSFORMERS[kind], *IGNORED[kind]), file or kind)


def check_tokenizer_files(folder):
    """Raises `ValueError` for a key of tokenizer.json that the library does not know, and warns of one of its options.

    Args:
        folder: A `pathlib.Path`.
    """
    for name, known in TOKENIZERS.items():
        config, known = read_if_there(folder, name), {*known, *IGNORED.get(name, ())}
        if name == "tokenizer.json":
            check_keys(config, known, name)
            continue
        # The key replaces the expression that splits texts.
        check_config(config, name, fix_mistral_regex=False)
        unknown = [
            key
            for key, value in config.items()
            if not (key in known or key.endswith("_token") or value is None)
        ]
        if unknown:
            log.warning(
                "%s has keys that are not known and not read: %s",
                name,
                printable(", ".join(unknown), LONGEST),
            )
