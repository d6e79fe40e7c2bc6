"""The families of models whose checkpoints are read and written.

Each family has a module here, which ends with its `FAMILY`, a `family.Family`.
"""

from keras_transformer.huggingface.families import (
    bart,
    bert,
    camembert,
    data2vec_text,
    distilbert,
    electra,
    ernie,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    llama,
    m2m_100,
    marian,
    mbart,
    ministral,
    mistral,
    modernbert,
    mpnet,
    mt5,
    olmo2,
    pegasus,
    phi3,
    qwen2,
    qwen3,
    roberta,
    smollm3,
    t5,
    umt5,
    vit,
    whisper,
    xlm_roberta,
)

# A model that several families can describe is written as the first of them.
ENCODER_MODULES = (
    bert,
    roberta,
    xlm_roberta,
    electra,
    distilbert,
    mpnet,
    modernbert,
    camembert,
    data2vec_text,
    ernie,
)
DECODER_MODULES = (gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, gemma3, ministral, smollm3, olmo2)
ENCODER_DECODER_MODULES = (t5, marian, bart, mbart, m2m_100, pegasus, mt5, umt5)
SPEECH_MODULES = (whisper,)
MODULES = (*ENCODER_MODULES, *DECODER_MODULES, *ENCODER_DECODER_MODULES, *SPEECH_MODULES, vit)
ENCODERS, DECODERS, ENCODER_DECODERS, SPEECH = (
    tuple(module.FAMILY.model_type for module in modules)
    for modules in (ENCODER_MODULES, DECODER_MODULES, ENCODER_DECODER_MODULES, SPEECH_MODULES)
)
FAMILIES = {module.FAMILY.model_type: module.FAMILY for module in MODULES}
