"""T5 and Marian: what they generate, what is particular in their files, and their way to a server."""

import json
import shutil

import keras
import numpy as np
import pytest
from families import MARIAN, T5, assert_refused, assert_same_texts, assert_same_weights, ours, theirs
from safetensors.numpy import load_file, save_file

from keras_transformer import layers
from keras_transformer.decoding import Beam, ExcludeTokens, Greedy
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.files import stored_tensors
from keras_transformer.huggingface.tensors import fill_weights
from keras_transformer.models import T5 as T5Model
from keras_transformer.models import EncoderDecoder, Transformer

WEIGHTS = "model.safetensors"
FOLDERS = {"t5": T5, "marian": MARIAN}
SIZE = 13  # few ids, so that texts end
SOURCES = (9, 6, 1, 4)
SEEDS = 20
LONGEST = 9


@pytest.fixture(scope="module", params=FOLDERS)
def written(request, tmp_path_factory):
    """A model, and a folder that it was written to."""
    model, folder = ours(FOLDERS[request.param]), tmp_path_factory.mktemp("written") / request.param
    to_huggingface(model, folder)
    return model, folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(written[1], tmp_path / "copy")


def rewritten(folder, change):
    """Replaces the tensors by what a function makes of them."""
    tensors = {name: array.copy() for name, array in load_file(folder / WEIGHTS).items()}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in change(tensors).items()}, folder / WEIGHTS
    )


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(folder):
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder)
    return str(caught.value)


# Ids.


@pytest.mark.parametrize(("config", "expected"), [(T5, (0, 0, 1)), (MARIAN, (30, 30, 0))])
def test_targets_begin_with_padding(config, expected, tmp_path):
    to_huggingface(ours(config), tmp_path / "new")
    model = from_huggingface(tmp_path / "new")
    assert (model.pad_id, model.bos_id, model.eos_id) == expected
    said = json.loads((tmp_path / "new" / "config.json").read_text())
    assert said["decoder_start_token_id"] == expected[0]


# Tensors.

COPIES = {
    "t5": ("shared.weight", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]),
    "marian": (
        "model.shared.weight",
        ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"],
    ),
}


def test_copies_of_the_embedding_may_be_stored_and_must_be_equal(written, folder):
    name, copies = COPIES[written[1].name]
    rewritten(folder, lambda tensors: {**tensors, **{copy: tensors[name] for copy in copies}})
    assert_same_weights(from_huggingface(folder), written[0])
    for copy in copies:
        rewritten(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[name] + 0.01})
        assert f"{copy!r} differs from {name!r}, which it is tied to" in refused(folder)
        rewritten(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[name]})


def test_a_bias_of_cross_attention_that_nothing_reads_is_passed_over(tmp_path):
    model, folder = ours(T5), tmp_path / "new"
    to_huggingface(model, folder)
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    rewritten(folder, lambda tensors: {**tensors, name: np.ones((8, 3), "float32")})
    assert_same_weights(from_huggingface(folder), model)
    rewritten(
        folder, lambda tensors: {**tensors, name.replace("block.0", "block.1"): np.ones((8, 3), "float32")}
    )
    assert "block.1.layer.1.EncDecAttention.relative_attention_bias.weight' is left over" in refused(folder)


TABLES = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]


def table(length=64, d_model=18, interleaved=False):
    """Positions by the formula, in double precision."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    parts = [np.sin(angles), np.cos(angles)]
    return np.stack(parts, -1).reshape(length, -1) if interleaved else np.concatenate(parts, -1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("length", [64, 1024])
def test_positions_that_are_stored_must_be_those_computed(tmp_path, dtype, length):
    model, folder = ours(MARIAN), tmp_path / "new"
    to_huggingface(model, folder)
    stored = table(length).astype(dtype)
    rewritten(folder, lambda tensors: {**tensors, **{name: stored for name in TABLES}})
    assert_same_weights(from_huggingface(folder), model)
    rewritten(folder, lambda tensors: {n.removeprefix("model."): array for n, array in tensors.items()})
    assert_same_weights(from_huggingface(folder), model)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (table(interleaved=True), "differs from what is computed in its place"),
        (table() + 0.01, "differs from what is computed in its place"),
        (table(d_model=16), "has shape (64, 16), not (64, 18)"),
        (table()[0], "has shape (18,), not (18, 18)"),
        (table().astype("int8"), "is I8, no float"),
    ],
    ids=["order", "values", "width", "rank", "integers"],
)
def test_other_positions_are_refused(tmp_path, stored, expected):
    folder = tmp_path / "new"
    to_huggingface(ours(MARIAN), folder)
    stored = stored if stored.dtype == "int8" else stored.astype("float32")
    rewritten(folder, lambda tensors: {**tensors, TABLES[1]: stored})
    assert f"{TABLES[1]!r} {expected}" in refused(folder)


def test_positions_are_not_written(tmp_path):
    to_huggingface(ours(MARIAN), tmp_path / "new")
    stored = load_file(tmp_path / "new" / WEIGHTS)
    assert not set(TABLES) & set(stored)
    assert stored["final_logits_bias"].shape == (1, 31)


def test_an_output_projection_of_its_own_shows_in_the_tensors(tmp_path):
    """As transformers 5 writes a T5 1.1: its configuration says that all is tied."""
    for config, tied in (
        ({**T5, "tie_word_embeddings": False}, False),
        ({**T5, "scale_decoder_outputs": False}, True),
    ):
        model, folder = ours(config), tmp_path / str(tied)
        to_huggingface(model, folder)
        configured(folder, tie_word_embeddings=True)
        again = from_huggingface(folder)
        assert (again.tie_embeddings, again.output_embedding.output_scale) == (tied, 1.0)
        assert_same_weights(again, model)


# What is refused.

CONFIG_ERRORS = [
    (T5, {"feed_forward_proj": "gated-mish"}, "feed_forward_proj='mish'"),
    (T5, {"is_encoder_decoder": False}, "is_encoder_decoder=False"),
    (T5, {"d_kv": 0}, "d_kv=0"),
    (T5, {"eos_token_id": None}, "eos_token_id=None"),
    (T5, {"relative_attention_num_buckets": 7}, "num_buckets=7"),
    (MARIAN, {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    (MARIAN, {"decoder_ffn_dim": 14}, "decoder_ffn_dim=14"),
    (MARIAN, {"decoder_attention_heads": 2}, "decoder_attention_heads=2"),
    (MARIAN, {"decoder_vocab_size": 37}, "decoder_vocab_size=37"),
    (MARIAN, {"normalize_before": True}, "normalize_before=True"),
    (MARIAN, {"static_position_embeddings": False}, "static_position_embeddings=False"),
    (MARIAN, {"decoder_layerdrop": 0.1}, "decoder_layerdrop=0.1"),
    (MARIAN, {"activation_function": "mish"}, "activation_function='mish'"),
    (MARIAN, {"pad_token_id": 31}, "pad_id=31"),
    (MARIAN, {"max_position_embeddings": 0}, "max_position_embeddings=0"),
    (MARIAN, {"decoder_layers": 0}, "decoder_layers=0"),
]


@pytest.mark.parametrize(("config", "changes", "expected"), CONFIG_ERRORS, ids=lambda x: str(x)[:40])
def test_configurations_without_a_part_are_refused(config, changes, expected):
    with pytest.raises(ValueError) as caught:
        FAMILIES[config["model_type"]].make_model({**config, **changes})
    assert expected in str(caught.value)


def test_a_configuration_of_a_file_is_refused(folder):
    configured(folder, pad_token_id=31)
    assert "pad_id=31" in refused(folder)


def marian_like(**changes):
    """A model of Marian's parts, but for those given."""
    parts = {
        "positions": layers.PositionalEncoding(interleaved=False),
        "output_bias": True,
        "layer_norm_epsilon": 1e-5,
        "num_heads": 3,
        "d_ff": 7,
        **changes,
    }
    return Transformer(11, num_layers=1, d_model=12, **parts)


def stacks_like(
    attention=None, cross_attention=None, feed_forward=None, encoder_layer=None, decoder_layer=None, **options
):
    """A model of Marian's parts, put together of layers, but for the parts given; these are functions."""
    options = {"dropout": 0.0, "layer_norm_epsilon": 1e-5, **options}

    def parts():
        return {
            "attention": (attention or heads)(),
            "feed_forward": (feed_forward or (lambda: layers.FeedForward(7)))(),
            **options,
        }

    make_encoder_layer = encoder_layer or layers.EncoderLayer
    make_decoder_layer = decoder_layer or layers.DecoderLayer
    return EncoderDecoder(
        11,
        None,
        12,
        layers.Encoder([make_encoder_layer(**parts())]),
        layers.Decoder(
            [make_decoder_layer(cross_attention=(cross_attention or attention or heads)(), **parts())]
        ),
        layers.PositionalEncoding(interleaved=False),
        output_bias=True,
    )


def t5_like(**changes):
    """A model of T5's parts, but for those given."""
    return T5Model(11, num_layers=1, d_model=12, num_heads=3, key_dim=5, d_ff=7, **changes)


def heads(**changes):
    return layers.MultiHeadAttention(3, 4, **changes)


@keras.saving.register_keras_serializable("tests")
class OtherEncoderLayer(layers.EncoderLayer):
    """A layer that may compute what no family's does."""


@keras.saving.register_keras_serializable("tests")
class OtherT5(T5Model):
    """A model that may compute what no family's does."""


WRONG_PARTS = [
    (
        lambda: marian_like(positions=None),
        "`positions` of a 'marian' model must have positions.interleaved=False",
    ),
    (lambda: marian_like(positions=layers.LearnedPositions(9)), "positions=<LearnedPositions"),
    (
        lambda: marian_like(positions=layers.PositionalEncoding(100.0, False)),
        "must have positions.max_wavelength=10000.0. Received: positions.max_wavelength=100.0",
    ),
    (lambda: marian_like(output_bias=False), "output_bias=False"),
    (lambda: marian_like(embedding_scale=2.0), "embedding_scale=2.0"),
    (lambda: marian_like(layer_norm_epsilon=1e-6), "layer_norm_epsilon=1e-06"),
    (lambda: marian_like(normalize_first=True), "normalize_first=True"),
    (lambda: marian_like(activation="elu"), "activation=<function elu"),
    (lambda: stacks_like(feed_forward=lambda: layers.GatedFeedForward(7)), "feed_forward=<GatedFeedForward"),
    (
        lambda: stacks_like(feed_forward=lambda: layers.FeedForward(7, use_bias=False)),
        "feed_forward_bias=False",
    ),
    (lambda: stacks_like(attention=lambda: heads(use_bias=False)), "attention_bias=False"),
    (lambda: stacks_like(attention=lambda: heads(num_key_value_heads=1)), "num_key_value_heads=1"),
    (
        lambda: stacks_like(attention=lambda: layers.MultiHeadAttention(3, 5)),
        "must be 12. Received: key_dim=15",
    ),
    (lambda: stacks_like(attention=lambda: heads(value_dim=5)), "value_dim=5"),
    (lambda: stacks_like(attention=lambda: heads(positions=layers.ALiBi())), "attention_positions=<ALiBi"),
    (lambda: stacks_like(attention=lambda: heads(scale=1.0)), "scale=1.0"),
    (lambda: marian_like(norm="rms"), "norm=<RMSNormalization"),
    (lambda: stacks_like(sandwich_norm=True, normalize_first=True), "normalize_first=True"),
    (lambda: stacks_like(encoder_layer=OtherEncoderLayer), "layer=<OtherEncoderLayer"),
    (lambda: stacks_like(cross_attention=lambda: heads(use_gate=True)), "attention.use_gate=True"),
    (lambda: stacks_like(cross_attention=lambda: layers.MultiHeadAttention(4, 3)), "attention.num_heads=4"),
    (lambda: t5_like(output_scale=0.5), "output_scale=0.5"),
    (lambda: t5_like(activation="elu"), "activation=<function elu"),
    (
        lambda: t5_like(activation="gelu", gated=True),
        "`gated_activation` of a 't5' model must be 'gelu_new'. Received: gated_activation='gelu'",
    ),
    (lambda: OtherT5(11, num_layers=1, d_model=12, num_heads=3, key_dim=5, d_ff=7), "model=<OtherT5"),
]


@pytest.mark.parametrize(
    ("make", "expected"), WRONG_PARTS, ids=lambda x: x[:60] if isinstance(x, str) else ""
)
def test_parts_that_a_family_does_not_have_are_named(make, expected, tmp_path):
    assert_refused(make(), expected, tmp_path)


def test_models_of_their_parts_are_written(tmp_path):
    """What the test above changes is all that is wrong with its models."""
    for make in (marian_like, stacks_like, t5_like):
        to_huggingface(make(), tmp_path / make.__name__)
        assert from_huggingface(tmp_path / make.__name__).target_vocab_size == 11


# Generation.


class Pairs:
    """Models of one kind, here and there, and sources for each."""

    def __init__(self, case):
        # transformers makes a cache of as many layers as the encoder has.
        small = {"vocab_size": SIZE, "num_decoder_layers": 2}
        if case == "marian":
            small = {
                "vocab_size": SIZE,
                "pad_token_id": 12,
                "decoder_start_token_id": 12,
                "scale_embedding": False,
            }
        self.config = {**FOLDERS[case], **small}
        self.family = FAMILIES[case]
        self.ours = self.family.make_model(self.config)
        self.constraints = ()
        self.options = {}
        if case == "marian":  # as its generation_config.json says
            self.constraints = (ExcludeTokens([self.ours.pad_id]),)
            self.options = {"bad_words_ids": [[self.ours.pad_id]], "renormalize_logits": True}
            self.options["forced_eos_token_id"] = None  # of an output that reaches its limit alone

    def each(self, folder):
        """Of each seed, their model and its sources; ours has its weights."""
        for seed in range(SEEDS):
            their_model = theirs(self.config, seed)
            their_model.save_pretrained(folder / str(seed))
            stored = stored_tensors(folder / str(seed))
            fill_weights(self.family.make_tensors(self.ours), stored, self.family.prefix)
            ids = np.random.default_rng(seed).integers(2, SIZE - 1, (len(SOURCES), max(SOURCES)))
            real = np.arange(max(SOURCES)) < np.array(SOURCES)[:, None]
            yield their_model, np.where(real, ids, self.ours.pad_id), real

    def texts_here(self, sources, strategy):
        found = self.ours.generate(
            sources, strategy, LONGEST, jit_compile=False, constraints=self.constraints
        )
        tokens, lengths = (keras.ops.convert_to_numpy(part)[:, 0] for part in found[:2])
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]

    def found_there(self, their_model, sources, real, **options):
        """The texts, each up to its end, and all that `generate` gave."""
        import torch

        found = their_model.generate(
            torch.tensor(sources),
            attention_mask=torch.tensor(real),
            do_sample=False,
            max_new_tokens=LONGEST,
            return_dict_in_generate=True,
            output_scores=True,
            **self.options,
            **options,
        )
        texts = [ids[1:].tolist() for ids in found.sequences]  # after what starts them
        eos = self.ours.eos_id
        return [ids[: ids.index(eos) + 1] if eos in ids else ids[:LONGEST] for ids in texts], found


@pytest.fixture(scope="module", params=FOLDERS)
def pairs(request):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return Pairs(request.param)


def test_greedy_search_finds_what_theirs_finds(pairs, tmp_path):
    compared = []
    for their_model, sources, real in pairs.each(tmp_path):
        expected, found = pairs.found_there(their_model, sources, real)
        first, second = np.stack([s.topk(2).values.numpy() for s in found.scores], axis=1).transpose(2, 0, 1)
        for row, text in enumerate(pairs.texts_here(sources, Greedy())):
            margin = (first - second)[row, : len(expected[row])].min()
            compared.append((text, expected[row], margin))
    assert_same_texts(compared)


def test_beam_search_finds_what_theirs_finds(pairs, tmp_path):
    """See the language models' test."""
    compared = []
    for their_model, sources, real in pairs.each(tmp_path):
        expected, found = pairs.found_there(
            their_model,
            sources,
            real,
            num_beams=4,
            num_return_sequences=2,
            length_penalty=1.0,
            early_stopping="never",
        )
        scores = found.sequences_scores.numpy().reshape(-1, 2)
        texts = pairs.texts_here(sources, Beam(4, 1.0, normalization="length"))
        for row, text in enumerate(texts):
            compared.append((text, expected[2 * row], scores[row, 0] - scores[row, 1]))
    assert_same_texts(compared)
