"""Compares numbers, tokens and files with those of transformers on PyTorch."""

import logging
import warnings

import keras
import numpy as np
import pytest
from families import (
    CONFIGS,
    EOS,
    LINEAR,
    LLAMA,
    LLAMA3,
    VOCAB,
    assert_same_texts,
    assert_same_weights,
    auto_class,
    ours,
    theirs,
)

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.files import read_config, stored_tensors
from keras_transformer.huggingface.tensors import fill_weights
from keras_transformer.layers import Decoder, LearnedPositions
from keras_transformer.models import EncoderDecoder, LanguageModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.disable_progress_bar()

SEEDS = (0, 1, 2)
MODELS, LONGEST = 20, 9  # of each kind, that texts are compared of
LENGTHS = (11, 7, 1, 5)
TOLERANCE = 2e-4
END, PAD = 11, 12  # in no prompt; of the models that texts are compared of


def rows(seed, pad_id, first=0):
    """Rows of different lengths without special tokens, padded on the right."""
    ids = np.random.default_rng(seed).integers(first, EOS, (len(LENGTHS), max(LENGTHS)))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return np.where(real, ids, pad_id), real


def difference(model, their_model, seed=0):
    """The largest difference between their logits and between their last states, at the real positions."""
    if isinstance(model, EncoderDecoder):
        return seq2seq_difference(model, their_model, seed)
    ids, real = rows(seed, model.pad_id)
    with torch.no_grad():
        expected = their_model(
            torch.tensor(ids), attention_mask=torch.tensor(real), output_hidden_states=True
        )
    differences = []
    for found, value in ((model(ids), expected.logits), (model.hidden(ids), expected.hidden_states[-1])):
        assert np.ptp(value.numpy()[real]) > 1
        differences.append(np.abs(keras.ops.convert_to_numpy(found) - value.numpy())[real].max())
    return max(differences)


def seq2seq_difference(model, their_model, seed):
    """The largest difference between their logits and between their encoded sources, at the real positions."""
    source, real = rows(seed, model.pad_id, first=2)
    target, written = (part[::-1].copy() for part in rows(seed + 100, model.pad_id, first=2))
    target[:, 0] = model.bos_id
    memory = model.encode(source)
    with torch.no_grad():
        expected = their_model(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(real),
            decoder_input_ids=torch.tensor(target),
        )
    differences = []
    for found, value, where in (
        (memory.states, expected.encoder_last_hidden_state, real),
        (model.decode(target, memory), expected.logits, written),
    ):
        assert np.ptp(value.numpy()[where]) > 1
        differences.append(np.abs(keras.ops.convert_to_numpy(found) - value.numpy())[where].max())
    return max(differences)


def quietly_loaded(folder, caplog):
    """What transformers loads, if it has nothing to say."""
    logging.getLogger("transformers").propagate = True
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        loader = auto_class(read_config(folder)["model_type"])
        model, found = loader.from_pretrained(folder, output_loading_info=True)
        transformers.GenerationConfig.from_model_config(model.config).validate()
    assert not any(found.values()), found
    tied = model.config.model_type == "t5"  # transformers 5 would tie every T5, and warns where one is not
    assert not [each for each in caplog.records if not (tied and "we will NOT tie" in each.message)]
    return model.eval()


def assert_same_state(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CONFIGS)
def test_logits_are_theirs(case, seed, tmp_path):
    their_model = theirs(CONFIGS[case], seed)
    their_model.save_pretrained(tmp_path)
    found = difference(from_huggingface(tmp_path), their_model, seed)
    assert found <= TOLERANCE
    print(f"{case}: {found:.1e}")


@pytest.mark.parametrize("case", CONFIGS)
def test_what_comes_in_goes_out_unchanged(case, tmp_path, caplog):
    their_model = theirs(CONFIGS[case])
    their_model.save_pretrained(tmp_path / "theirs")
    beside = {"max_position_embeddings": 64} if case.startswith(("llama", "marian")) else {}
    to_huggingface(from_huggingface(tmp_path / "theirs"), tmp_path / "ours", 2000, beside)
    again = quietly_loaded(tmp_path / "ours", caplog)
    assert_same_state(again, their_model)
    saved, expected = again.config.to_dict(), their_model.config.to_dict()
    differing = {key for key in saved if saved[key] != expected.get(key)} - {"_name_or_path", "dtype"}
    assert differing <= {"n_inner", "hidden_act"}  # said where they leave it open; another name of the same


@pytest.mark.parametrize("case", CONFIGS)
def test_our_own_models_compute_the_same_there(case, tmp_path, caplog):
    model = ours(CONFIGS[case])
    to_huggingface(model, tmp_path / "new")
    their_model = quietly_loaded(tmp_path / "new", caplog)
    assert difference(model, their_model) <= TOLERANCE
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


def test_a_model_of_plain_arguments_is_a_gpt2(tmp_path, caplog):
    decoder = Decoder(2, 3, 7, dropout=0.0, activation="gelu", normalize_first=True)
    model = LanguageModel(
        VOCAB, 12, decoder, LearnedPositions(13), pad_id=0, bos_id=1, eos_id=2, tie_embeddings=False
    )
    to_huggingface(model, tmp_path / "new")
    their_model = quietly_loaded(tmp_path / "new", caplog)
    config = their_model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 13))
    found = keras.ops.convert_to_numpy(model(ids))
    assert np.abs(found - their_model(torch.tensor(ids)).logits.detach().numpy()).max() <= TOLERANCE


@pytest.mark.parametrize("case", ["gpt2", "llama-llama3", "t5", "marian"])
def test_half_precision_is_read_as_they_round_it(case, tmp_path):
    their_model = theirs(CONFIGS[case])
    for dtype in (torch.float64, torch.float16, torch.bfloat16):  # each rounds what the one before left
        folder = tmp_path / str(dtype)  # "torch.bfloat16"
        their_model.to(dtype).save_pretrained(folder)
        rounded = type(their_model).from_pretrained(folder, dtype=torch.float32)
        assert difference(from_huggingface(folder), rounded) <= TOLERANCE
        their_model = their_model.to(torch.float32)


@pytest.mark.parametrize("rope", [None, LINEAR, LLAMA3], ids=["default", "linear", "llama3"])
def test_rope_of_transformers_4_is_that_of_5(rope, tmp_path):
    scaling = None if rope is None else {**rope}
    theta = 77.0 if rope is None else scaling.pop("rope_theta")
    if rope is LINEAR:
        scaling["type"] = scaling.pop("rope_type")  # older still
    old = {**LLAMA, "rope_theta": theta, "rope_scaling": scaling}
    new = {**LLAMA, "rope_parameters": rope or {"rope_type": "default", "rope_theta": theta}}
    expected = ours(new).decoder.layers[0].self_attention.positions
    found = ours(old).decoder.layers[0].self_attention.positions
    assert found.max_wavelength == theta
    assert (found.max_wavelength, found.scaling) == (expected.max_wavelength, expected.scaling)
    read = transformers.LlamaConfig(**{k: v for k, v in old.items() if k != "model_type"})
    assert read.rope_parameters.items() >= {"rope_theta": theta, **(rope or {})}.items()


class Pairs:
    """Models of one kind, here and there, and prompts; of so few tokens that some texts end early."""

    def __init__(self, case):
        ids = {"vocab_size": PAD + 1, "bos_token_id": 0, "eos_token_id": END, "pad_token_id": PAD}
        self.config = {**CONFIGS[case], **ids}
        self.family = FAMILIES[self.config["model_type"]]
        self.ours = self.family.make_model(self.config)

    def each(self, folder):
        """Of each seed, their model and its prompts; ours has its weights."""
        for seed in range(MODELS):
            their_model = theirs(self.config, seed)
            their_model.save_pretrained(folder / str(seed))
            stored = stored_tensors(folder / str(seed))
            fill_weights(self.family.make_tensors(self.ours), stored, self.family.prefix)
            ids = np.random.default_rng(seed).integers(0, END, (len(LENGTHS), max(LENGTHS)))
            yield their_model, [row[:length].tolist() for row, length in zip(ids, LENGTHS, strict=True)]

    def continued_here(self, prompts, strategy):
        """The text after each prompt, all in one batch."""
        longest = max(map(len, prompts))
        padded = np.array([prompt + [PAD] * (longest - len(prompt)) for prompt in prompts])
        found = self.ours.generate(padded, strategy, LONGEST, jit_compile=False)
        tokens, lengths = (keras.ops.convert_to_numpy(part)[:, 0] for part in found[:2])
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def continued_there(their_model, prompts, **options):
    """The texts after the prompts, each up to its end, and all that `generate` gave. Theirs are padded on the left."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    found = their_model.generate(
        padded,
        attention_mask=(padded != PAD).long(),
        do_sample=False,
        max_new_tokens=LONGEST,
        eos_token_id=END,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    texts = [ids[longest:].tolist() for ids in found.sequences]
    ends = [ids.index(END) + 1 if END in ids else len(ids) for ids in texts]
    return [ids[:end] for ids, end in zip(texts, ends, strict=True)], found


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pairs(request):
    return Pairs(request.param)


def test_greedy_search_finds_what_theirs_finds(pairs, tmp_path):
    compared = []
    for their_model, prompts in pairs.each(tmp_path):
        expected, found = continued_there(their_model, prompts)
        first, second = torch.stack(found.scores, dim=1).topk(2).values.permute(2, 0, 1)
        for row, text in enumerate(pairs.continued_here(prompts, Greedy())):
            margin = (first - second)[row, : len(expected[row])].min()
            compared.append((text, expected[row], margin))
    assert_same_texts(compared)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_search_finds_what_theirs_finds(pairs, length_penalty, tmp_path):
    """Theirs ranks by `log P / length ** length_penalty`, which is our normalization "length", and both count eos. Ours
    stops where no open hypothesis can win any more; that is their `early_stopping="never"`. Their default guesses.
    """
    compared = []
    for their_model, prompts in pairs.each(tmp_path):
        expected, found = continued_there(
            their_model,
            prompts,
            num_beams=4,
            num_return_sequences=2,
            length_penalty=length_penalty,
            early_stopping="never",
        )
        scores = found.sequences_scores.reshape(-1, 2)
        texts = pairs.continued_here(prompts, Beam(4, length_penalty, normalization="length"))
        for row, text in enumerate(texts):
            compared.append((text, expected[2 * row], scores[row, 0] - scores[row, 1]))
    assert_same_texts(compared)
