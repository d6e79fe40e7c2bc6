"""Training takes the same course as PyTorch's: the same losses and weights after 200 steps of Adam."""

import keras
import numpy as np
import pytest

from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import Transformer
from keras_transformer.training import Adam

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # its waiting threads take the cores from TensorFlow

VOCAB, D_MODEL, HEADS, D_FF, LAYERS = 61, 32, 4, 64, 2
STEPS, BATCH, LENGTH, CLIP, SMOOTHING = 200, 16, 11, 1.0, 0.1
ADAM = {"learning_rate": 2.0**-10, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
PAD, BOS, EOS = 0, 2, 3


def batches():
    """Sentences of many lengths; a target is its source read backwards."""
    rng = np.random.default_rng(7)
    for _ in range(STEPS):
        source, target = np.zeros((2, BATCH, LENGTH + 2), "int32")
        for row in range(BATCH):
            ids = rng.integers(4, VOCAB, rng.integers(1, LENGTH + 1))
            source[row, : len(ids) + 1] = [*ids, EOS]
            target[row, : len(ids) + 2] = [BOS, *ids[::-1], EOS]
        yield source, target[:, :-1], target[:, 1:]


class Model(torch.nn.Module):
    """The paper's model of PyTorch's layers, with one embedding for source, target and output."""

    def __init__(self, dtype, activation):
        super().__init__()
        layer = {
            "dropout": 0.0,
            "batch_first": True,
            "layer_norm_eps": 1e-6,
            "activation": activation,
            "dtype": dtype,
        }
        encoder = torch.nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, **layer)
        decoder = torch.nn.TransformerDecoderLayer(D_MODEL, HEADS, D_FF, **layer)
        self.encoder = torch.nn.TransformerEncoder(encoder, LAYERS, enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoder(decoder, LAYERS)
        self.embedding = torch.nn.Parameter(torch.zeros(VOCAB, D_MODEL, dtype=dtype))
        angles = np.arange(LENGTH + 2)[:, None] / 10000 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
        positions = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(LENGTH + 2, D_MODEL)
        self.register_buffer("positions", torch.tensor(positions, dtype=dtype))

    def embed(self, ids):
        return self.embedding[ids] * D_MODEL**0.5 + self.positions[: ids.shape[1]]

    def forward(self, source, target):
        padding = source == PAD
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        memory = self.encoder(self.embed(source), src_key_padding_mask=padding)
        out = self.decoder(
            self.embed(target), memory, tgt_mask=causal, tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=padding,
        )  # fmt: skip
        return out @ self.embedding.T


def pairs(ours, theirs):
    """Pairs each weight of PyTorch with the arrays that hold the same numbers in `ours`, joined in its layout."""
    weights = {w.path: w for w in ours.weights}
    names = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
    norms = {
        "encoder": ["self_attention", "feed_forward"],
        "decoder": ["self_attention", "cross_attention", "feed_forward"],
    }

    def array(name):
        return keras.ops.convert_to_numpy(weights.pop(name))

    yield theirs.embedding, array("target/tokens/embeddings")
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(theirs, stack).layers):
            at = f"{stack}/layer_{i}"
            for name, attention in layer.named_children():
                if name not in names:
                    continue
                ends = [f"{at}/{names[name]}/{part}" for part in ("query", "key", "value")]
                kernels = [array(f"{end}/kernel").reshape(D_MODEL, D_MODEL).T for end in ends]
                yield attention.in_proj_weight, np.concatenate(kernels)
                yield (
                    attention.in_proj_bias,
                    np.concatenate([array(f"{end}/bias").reshape(-1) for end in ends]),
                )
                end = f"{at}/{names[name]}/attention_output"
                yield attention.out_proj.weight, array(f"{end}/kernel").reshape(D_MODEL, D_MODEL).T
                yield attention.out_proj.bias, array(f"{end}/bias")
            for linear, part in ((layer.linear1, "inner"), (layer.linear2, "outer")):
                yield linear.weight, array(f"{at}/feed_forward/{part}/kernel").T
                yield linear.bias, array(f"{at}/feed_forward/{part}/bias")
            for number, sublayer in enumerate(norms[stack], start=1):
                norm = getattr(layer, f"norm{number}")
                yield norm.weight, array(f"{at}/{sublayer}_residual/norm/gamma")
                yield norm.bias, array(f"{at}/{sublayer}_residual/norm/beta")
    assert not weights, f"weights without a partner: {list(weights)}"


def losses_of_keras(model):
    model.compile(optimizer=Adam(global_clipnorm=CLIP, **ADAM), loss=MaskedCrossentropy(SMOOTHING))
    for source, target, labels in batches():
        model.reset_metrics()  # else `train_on_batch` returns the mean over all steps
        yield float(model.train_on_batch({"source": source, "target": target}, labels))


def losses_of_pytorch(model):
    optimizer = torch.optim.Adam(
        model.parameters(), lr=ADAM["learning_rate"], betas=(ADAM["beta_1"], ADAM["beta_2"])
    )
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=SMOOTHING)
    for step, batch in enumerate(batches(), start=1):
        source, target, labels = (torch.tensor(ids, dtype=torch.long) for ids in batch)
        optimizer.zero_grad()
        loss = loss_of(model(source, target).flatten(0, 1), labels.flatten())
        loss.backward()
        # `torch.nn.utils.clip_grad_norm_` adds 1e-6 to the norm. Keras does not.
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for p in model.parameters():
            p.grad.mul_(CLIP / torch.clamp(norm, min=CLIP))
        # Keras divides by `sqrt(v) + epsilon` before the bias correction of `v`, PyTorch after it.
        optimizer.param_groups[0]["eps"] = ADAM["epsilon"] / (1 - ADAM["beta_2"] ** step) ** 0.5
        optimizer.step()
        yield loss.item()


@pytest.fixture
def floatx(request):
    """Makes a dtype the default of Keras's layers, losses and metrics."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(request.param)
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


# The gradient of ReLU jumps at 0. In float32 rounding decides the side often enough to part two equal programs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("floatx", "activation", "tolerance"),
    [("float32", "gelu", 1e-4), ("float64", "relu", 1e-9)],
    indirect=["floatx"],
)
def test_two_hundred_steps_are_those_of_pytorch(floatx, activation, tolerance):
    keras.utils.set_random_seed(5)
    sizes = {"num_layers": LAYERS, "d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF, "dropout": 0.0}
    ours = Transformer(VOCAB, **sizes, activation=activation)
    theirs = Model(getattr(torch, floatx), activation)
    with torch.no_grad():
        for parameter, array in pairs(ours, theirs):
            assert parameter.shape == array.shape
            parameter.copy_(torch.tensor(array))
    expected, found = list(losses_of_pytorch(theirs)), list(losses_of_keras(ours))
    assert np.mean(found[-10:]) < 0.8 * found[0], "the model did not learn, so equal losses say little"
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    for parameter, array in pairs(ours, theirs):
        # A bias of the keys changes no attention weight. Its gradient is rounding alone, which Adam enlarges.
        rows = slice(None)
        expected = parameter.detach().numpy()
        if expected.shape == (3 * D_MODEL,):
            rows = np.r_[:D_MODEL, 2 * D_MODEL : 3 * D_MODEL]
        np.testing.assert_allclose(array[rows], expected[rows], rtol=0, atol=100 * tolerance)
