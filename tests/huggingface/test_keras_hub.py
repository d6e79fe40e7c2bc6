"""Models of KerasHub: what `from_keras_hub` makes computes what they compute."""

import io

import numpy as np
import pytest
import sentencepiece
from alone import run_alone
from contracts import as_numpy, randomized, refuses

pytest.importorskip("keras_hub", reason="keras-hub is not installed: pip install keras-hub")
import keras_hub
from keras_hub.src.utils.keras_utils import gelu_approximate

from keras_transformer import from_keras_hub
from keras_transformer.huggingface import tokenizer_from_keras_hub
from keras_transformer.serving import TextGenerator, Translator

VOCAB = 61
DECODER = {
    "vocabulary_size": VOCAB, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16,
    "intermediate_dim": 28, "dropout": 0.0,
}  # fmt: skip
ENCODER = {
    "vocabulary_size": VOCAB, "num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 28,
    "dropout": 0.0, "max_sequence_length": 23,
}  # fmt: skip
SCALED = {"rope_frequency_adjustment_factor": 8.0, "rope_pretraining_sequence_length": 16}
SCALED |= {"rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0}
DECODERS = {
    "gpt2": ("GPT2Backbone", ENCODER),
    "llama": ("LlamaBackbone", DECODER),
    "llama3": ("Llama3Backbone", DECODER),
    "llama3, tied and scaled": ("Llama3Backbone", {**DECODER, "tie_word_embeddings": True, **SCALED}),
    "mistral": ("MistralBackbone", {**DECODER, "sliding_window": 5}),
    "qwen": ("QwenBackbone", DECODER),
    "qwen, tied": ("QwenBackbone", {**DECODER, "tie_word_embeddings": True}),
}
GEMMA = {
    **DECODER, "head_dim": 6, "use_post_ffw_norm": True, "use_post_attention_norm": True,
    "attention_logit_soft_cap": 5.0, "final_logit_soft_cap": 7.0, "use_sliding_window_attention": True,
    "sliding_window_size": 5,
}  # fmt: skip
DECODERS["gemma2"] = "GemmaBackbone", GEMMA
DECODERS["gemma2, scaled by the width"] = "GemmaBackbone", {**GEMMA, "query_head_dim_normalize": False}
PLAIN = {"use_post_ffw_norm": False, "use_post_attention_norm": False, "use_sliding_window_attention": False}
CAPS = {"attention_logit_soft_cap": None, "final_logit_soft_cap": None}
GEMMA1 = {**GEMMA, **PLAIN, **CAPS, "num_key_value_heads": 1}
DECODERS["gemma"] = "GemmaBackbone", GEMMA1
# The sixth layer has no window.
GEMMA3 = {**GEMMA, **CAPS, "num_layers": 7, "image_size": None}
DECODERS["gemma3"] = "Gemma3Backbone", GEMMA3
SCALED3 = {"global_rope_scaling_factor": 8.0, "final_logit_soft_cap": 7.0, "query_head_dim_normalize": False}
DECODERS["gemma3, scaled"] = "Gemma3Backbone", {**GEMMA3, **SCALED3}
T5 = {**{name: value for name, value in ENCODER.items() if name != "max_sequence_length"}, "key_value_dim": 6}
SEQ2SEQ = {
    "bart": ("BartBackbone", ENCODER),
    "t5": ("T5Backbone", {**T5, "use_gated_activation": False}),
    "t5, gated and untied": (
        "T5Backbone",
        {**T5, "activation": gelu_approximate, "tie_embedding_weights": False},
    ),
}
ENCODERS = {
    "bert": ("BertBackbone", {**ENCODER, "num_segments": 3}),
    "roberta": ("RobertaBackbone", ENCODER),
    "xlm_roberta": ("XLMRobertaBackbone", ENCODER),
    "distilbert": ("DistilBertBackbone", ENCODER),
}
IDS = np.array([[5, 9, 41, 7, 33, 12, 60, 8, 22], [17, 6, 3, 8, 11, 0, 0, 0, 0]], "int32")


def backbone_of(name, options, scale=0.3):
    return randomized(getattr(keras_hub.models, name)(**options), 1, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECODERS)
def test_logits_of_decoders_are_those_of_kerashub(kind):
    backbone = backbone_of(*DECODERS[kind])
    made = from_keras_hub(backbone, pad_id=0, bos_id=1, eos_id=2)
    states = backbone({"token_ids": IDS, "padding_mask": IDS != 0})
    expected = as_numpy(backbone.token_embedding(states, reverse=True))
    found = as_numpy(made(IDS))
    scale = np.abs(expected[IDS != 0]).max()
    np.testing.assert_allclose(found[IDS != 0], expected[IDS != 0], rtol=0, atol=1e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_states_of_encoders_are_those_of_kerashub(kind):
    backbone = backbone_of(*ENCODERS[kind])
    inputs = {"token_ids": IDS, "padding_mask": IDS != 0}
    pad_id = 1 if "roberta" in kind else 0
    ids = np.where(IDS == 0, pad_id, IDS)
    if kind == "bert":
        inputs["segment_ids"] = (np.arange(9) > 3).astype("int32") * (IDS != 0)
    expected = backbone({**inputs, "token_ids": ids})
    expected = expected["sequence_output"] if kind == "bert" else expected
    made = from_keras_hub(backbone)
    given = {"token_ids": ids, "segment_ids": inputs["segment_ids"]} if kind == "bert" else ids
    found = as_numpy(made(given))
    np.testing.assert_allclose(found[IDS != 0], as_numpy(expected)[IDS != 0], rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_logits_of_encoder_decoders_are_those_of_kerashub(kind):
    backbone, pad_id = backbone_of(*SEQ2SEQ[kind]), 0 if "t5" in kind else 1
    source, target = (
        np.where(IDS == 0, pad_id, IDS),
        np.where(IDS == 0, pad_id, IDS[:, ::-1] + (IDS[:, ::-1] == 0) * 9),
    )
    real = target != pad_id
    inputs = {"encoder_token_ids": source, "encoder_padding_mask": source != pad_id}
    inputs |= {"decoder_token_ids": target, "decoder_padding_mask": real}
    states = backbone({name: value.astype("int32") for name, value in inputs.items()})[
        "decoder_sequence_output"
    ]
    scale = backbone.hidden_dim**-0.5 if kind == "t5" else 1.0
    expected = as_numpy(backbone.token_embedding(states * scale, reverse=True))
    found = as_numpy(from_keras_hub(backbone)({"source": source, "target": target}))
    atol = 1e-5 * np.abs(expected[real]).max()
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=atol)


def byte_level(*merges):
    """A vocabulary of bytes with merges, as GPT-2 writes them."""
    letters = [chr(i) for i in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    return {piece: i for i, piece in enumerate([*letters, *(merge.replace(" ", "") for merge in merges)])}


MERGES = ["t h", "th e", "\u0120 a", "o n"]


def gpt2_task():
    vocabulary = byte_level(*MERGES)
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary, MERGES)
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=24)
    backbone = backbone_of(
        "GPT2Backbone", {**ENCODER, "vocabulary_size": len(vocabulary), "max_sequence_length": 40}
    )
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor)


def pieces(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the one and the other", "one two three", "an other one"] * 9),
        model_writer=model, vocab_size=300, hard_vocab_limit=False, model_type="bpe", minloglevel=9,
        **{"byte_fallback": True, **options},
    )  # fmt: skip
    return model.getvalue()


def causal_task(name, tokenizer, options):
    preprocessor = getattr(keras_hub.models, f"{name}CausalLMPreprocessor")(tokenizer, sequence_length=24)
    backbone = backbone_of(f"{name}Backbone", {**options, "vocabulary_size": tokenizer.vocabulary_size()})
    return getattr(keras_hub.models, f"{name}CausalLM")(backbone=backbone, preprocessor=preprocessor)


LLAMA3 = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
LLAMA3 = [f"<|{name}|>" for name in LLAMA3]


def llama3_task():
    vocabulary = byte_level(*MERGES)
    vocabulary |= {name: len(vocabulary) + i for i, name in enumerate(LLAMA3)}
    return causal_task("Llama3", keras_hub.models.Llama3Tokenizer(vocabulary, MERGES), DECODER)


def qwen_task():
    vocabulary = byte_level(*MERGES)
    vocabulary["<|endoftext|>"] = len(vocabulary)
    return causal_task("Qwen", keras_hub.models.QwenTokenizer(vocabulary, MERGES), DECODER)


def gemma_task(name="Gemma", options=GEMMA):
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
    names = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>", "unk_piece": "<unk>"}
    # Gemma 3's tokenizer wants tokens of pictures.
    if name == "Gemma3":
        ids["user_defined_symbols"] = ["<start_of_image>", "<end_of_image>", "<img>", "[multimodal]"]
    tokenizer = getattr(keras_hub.models, f"{name}Tokenizer")(pieces(**ids, **names))
    return causal_task(name, tokenizer, options)


def t5_task():
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>", "eos_piece": "</s>"}
    tokenizer = keras_hub.models.T5Tokenizer(pieces(**ids, unk_piece="<unk>", byte_fallback=False))
    return seq2seq_task("T5", tokenizer, {**T5, "use_gated_activation": False})


def bart_task():
    vocabulary = {name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>"])}
    vocabulary |= {piece: i + 4 for piece, i in byte_level(*MERGES).items()}
    vocabulary["<mask>"] = len(vocabulary)
    return seq2seq_task(
        "Bart", keras_hub.models.BartTokenizer(vocabulary, MERGES), {**ENCODER, "max_sequence_length": 40}
    )


def seq2seq_task(name, tokenizer, options):
    lengths = {"encoder_sequence_length": 24, "decoder_sequence_length": 12}
    preprocessor = getattr(keras_hub.models, f"{name}Seq2SeqLMPreprocessor")(tokenizer, **lengths)
    options = {**options, "vocabulary_size": tokenizer.vocabulary_size()}
    # A small T5 says the same to all texts.
    backbone = backbone_of(f"{name}Backbone", options, scale=1.0 if name == "T5" else 0.3)
    return getattr(keras_hub.models, f"{name}Seq2SeqLM")(backbone, preprocessor)


def roberta_task():
    vocabulary = {name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>"])}
    vocabulary |= {piece: i + 4 for piece, i in byte_level(*MERGES).items()}
    vocabulary["<mask>"] = len(vocabulary)
    tokenizer = keras_hub.models.RobertaTokenizer(vocabulary, MERGES)
    preprocessor = keras_hub.models.RobertaTextClassifierPreprocessor(tokenizer, sequence_length=9)
    backbone = backbone_of("RobertaBackbone", {**ENCODER, "vocabulary_size": len(vocabulary)})
    return keras_hub.models.RobertaTextClassifier(backbone, 2, preprocessor)


def bert_task():
    words = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "one", "##s", "t", "##w", "##o", "a", ",", ".",
    ]  # fmt: skip
    tokenizer = keras_hub.models.BertTokenizer(words, lowercase=True)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=9)
    return keras_hub.models.BertTextClassifier(backbone_of("BertBackbone", ENCODER), 2, preprocessor)


TASKS = {
    "gpt2": gpt2_task,
    "llama": lambda: causal_task("Llama", keras_hub.models.LlamaTokenizer(pieces()), DECODER),
    "llama3": llama3_task,
    "mistral": lambda: causal_task("Mistral", keras_hub.models.MistralTokenizer(pieces()), DECODER),
    "qwen": qwen_task,
    "gemma": gemma_task,
    "gemma1": lambda: gemma_task(options=GEMMA1),
    "gemma3": lambda: gemma_task("Gemma3", GEMMA3),
    "bart": bart_task,
    "t5": t5_task,
    "bert": bert_task,
    "roberta": roberta_task,
}
TEXTS = ["the one", "The ones, two.", "a  \ud55c", ""]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_ids_of_texts_and_special_ids_are_those_of_kerashub(kind):
    task = TASKS[kind]()
    tokenizer = task.preprocessor.tokenizer
    found = tokenizer_from_keras_hub(task).tokenize(TEXTS).to_list()
    assert found == [np.asarray(tokenizer(text)).tolist() for text in TEXTS]
    made = from_keras_hub(task)
    if kind in SEQ2SEQ:
        assert (made.pad_id, made.eos_id) == (tokenizer.pad_token_id, tokenizer.end_token_id)
        return
    names = ("cls_id", "sep_id") if "bert" in kind else ("bos_id", "eos_id")
    expected = tokenizer.start_token_id, tokenizer.end_token_id
    for name, special in zip(names, expected, strict=True):
        assert special is None or getattr(made, name) == special


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama3", "mistral", "qwen", "gemma", "gemma1", "gemma3"])
def test_greedy_texts_are_those_of_kerashub(kind, tmp_path):
    task = TASKS[kind]()
    task.compile(sampler="greedy")
    first = task.preprocessor.tokenizer.start_token_id
    generator = TextGenerator(
        from_keras_hub(task), tokenizer_from_keras_hub(task), max_source_length=20, max_length=9,
        starts_with_bos=first is not None,
    )  # fmt: skip
    prompts, wholes = ["the one", "a"], []
    for prompt in prompts:
        length = len(task.preprocessor.tokenizer(prompt)) + (first is not None) + 9
        wholes.append(task.generate(prompt, max_length=length))
        assert prompt + generator.generate([prompt])[0] == wholes[-1]
    path = generator.export(tmp_path / "export", warmup=False, signatures=["serving_default"])
    found = run_alone(path, prompts, False, tmp_path, "serving_default")["serving_default"]
    assert [prompt + text for prompt, text in zip(prompts, found["continuation"], strict=True)] == wholes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_greedy_answers_are_those_of_kerashub(kind, tmp_path):
    task = TASKS[kind]()
    task.compile(sampler="greedy")
    model, tokenizer = from_keras_hub(task), tokenizer_from_keras_hub(task)
    first = task.preprocessor.tokenizer.start_token_id
    # KerasHub's BART begins each answer with `</s><s>`.
    start = {"source_start": (first,), "target_start": (first,)} if kind == "bart" else {}
    translator = Translator(model, tokenizer, max_source_length=24, max_length=10 + (kind == "bart"), **start)
    texts = ["the one", "a", "one two three"]
    expected = [
        task.generate({"encoder_text": text, "decoder_text": ""}, max_length=12 - (kind == "t5"))
        for text in texts
    ]
    assert translator.translate(texts) == expected
    path = translator.export(tmp_path / "export", warmup=False, signatures=["serving_default"])
    found = run_alone(path, texts, False, tmp_path, "serving_default")["serving_default"]
    assert found["translation"] == expected and len(set(expected)) > 1


def test_another_model_is_refused():
    refuses(r"one of the backbones GPT2Backbone, .* Received: model='list'", from_keras_hub, [])
    with pytest.raises(ValueError, match="`use_post_attention_norm` of a 'gemma2' model must be True"):
        from_keras_hub(keras_hub.models.GemmaBackbone(**{**GEMMA, "use_post_attention_norm": False}))
    backbone = keras_hub.models.GemmaBackbone(**GEMMA1)
    backbone.transformer_layers[0].attention.query_head_dim_normalize = False
    refuses("`query_head_dim_normalize` of a 'gemma' model must be True", from_keras_hub, backbone)
    with pytest.raises(ValueError, match="`activation` of gated networks must be `gelu_approximate`"):
        from_keras_hub(keras_hub.models.T5Backbone(**{**T5, "activation": "gelu"}))


@pytest.mark.parametrize("change", ["int8", "LoRA"])
def test_weights_that_are_not_plain_are_refused(change):
    backbone = backbone_of(*DECODERS["gpt2"])
    if change == "int8":
        backbone.quantize("int8")
    else:
        backbone.enable_lora(2)
    rule = "must not be quantized: read its weights before" if change == "int8" else "merge LoRA"
    refuses(rule, from_keras_hub, backbone)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama3", "mistral", "qwen", "gemma", "gemma2", "gemma3"])
def test_decoders_have_the_dropout_of_attention(kind):
    name, options = DECODERS[kind]
    made = from_keras_hub(backbone_of(name, {**options, "dropout": 0.25}), pad_id=0, bos_id=1, eos_id=2)
    assert {layer.self_attention.dropout for layer in made.decoder.layers} == {0.25}
