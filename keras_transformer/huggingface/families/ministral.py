"""Ministral: Mistral with windows in some of its layers, as `layer_types` says."""

import dataclasses

from keras_transformer.huggingface.families import mistral

FAMILY = dataclasses.replace(
    mistral.FAMILY,
    model_type="ministral",
    classes=("MinistralForCausalLM",),
    rows={**mistral.MISTRAL_ROWS, "layer_types": ("layer_types", None)},
)
