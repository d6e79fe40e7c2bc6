"""The Transformer once more, in NumPy and float64: written from the paper, to be compared with.

Weights are a dict from path to array; `weights_of` takes it from a layer, `under` walks down one name.
"""

import numpy as np


def weights_of(layer):
    """The weights of a built layer or model, under their paths without the layer's own name."""
    own = f"{layer.path}/"
    return {w.path.removeprefix(own): np.asarray(w.value, "float64") for w in layer.weights}


def under(weights, name):
    return {path[len(name) + 1 :]: value for path, value in weights.items() if path.startswith(f"{name}/")}


def softmax(scores, allowed):
    """Computes the softmax of each row over the allowed keys alone; zeros where none is allowed."""
    weights = np.zeros(scores.shape)
    for row in np.ndindex(*scores.shape[:-1]):
        keys = np.flatnonzero(allowed[row])
        if len(keys):
            powers = np.exp(scores[row][keys] - scores[row][keys].max())
            weights[row][keys] = powers / powers.sum()
    return weights


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def attention(weights, query, value, key=None, allowed=True):
    """Multi-head attention, section 3.2.2; `allowed` broadcasts to `(batch, heads, target_len, source_len)`.

    Returns the output and the attention scores.
    """
    key = value if key is None else key

    def project(x, name):
        projected = np.einsum("btf,fhd->bhtd", x, weights[f"{name}/kernel"])
        return projected + weights.get(f"{name}/bias", np.zeros(1))[..., None, :]

    q, k, v = project(query, "query"), project(key, "key"), project(value, "value")
    scores = np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
    attended = softmax(scores, np.broadcast_to(allowed, scores.shape))
    context = np.einsum("bhts,bhsd->bthd", attended, v)
    kernel = weights["attention_output/kernel"]
    output = np.tensordot(context, kernel, axes=([2, 3], [0, 1]))
    return output + weights.get("attention_output/bias", 0.0), attended


def positions(length, d_model, max_wavelength=10000.0, start_index=0):
    """Section 3.5, one number at a time."""
    table = np.zeros((length, d_model))
    for p in range(length):
        for channel in range(d_model):
            pair = channel // 2
            angle = (start_index + p) / max_wavelength ** (2 * pair / d_model)
            table[p, channel] = np.cos(angle) if channel % 2 else np.sin(angle)
    return table


def layer_norm(weights, x, epsilon=1e-6):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def rms_norm(weights, x, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weights["scale"]


def relu(x):
    return np.maximum(x, 0.0)


def feed_forward(weights, x, activation=relu):
    return dense(under(weights, "outer"), activation(dense(under(weights, "inner"), x)))


def gated_feed_forward(weights, x, activation):
    gate, inner = (dense(under(weights, name), x) for name in ("gate", "inner"))
    return dense(under(weights, "outer"), activation(gate) * inner)


def dense(weights, x):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def routing(weights, x, top_k):
    """The share of each expert in each token, and its softmax over all experts."""
    logits = x @ weights["router/kernel"]
    likely = softmax(logits, np.ones(logits.shape, bool))
    top = np.argsort(-logits, axis=-1, kind="stable")[..., :top_k]
    chosen = np.zeros(logits.shape, bool)
    np.put_along_axis(chosen, top, True, axis=-1)
    return (softmax(logits, chosen) if top_k > 1 else likely * chosen), likely


def mixture(weights, x, top_k, expert=feed_forward):
    """One token at a time, by its own experts alone."""
    shares, _ = routing(weights, x, top_k)
    output = np.zeros(x.shape)
    for *token, i in np.argwhere(shares):
        token = tuple(token)
        output[token] += shares[(*token, i)] * expert(under(weights, f"expert_{i}"), x[token])
    return output


def imbalance(weights, x, top_k, real):
    """Switch Transformers, equation 4 without its alpha, over the real tokens."""
    shares, likely = routing(weights, x, top_k)
    choices = (shares[real] > 0).sum(axis=0) / (top_k * real.sum())
    return shares.shape[-1] * np.sum(choices * likely[real].mean(axis=0))


def residual(weights, x, sublayer, normalize_first=False, epsilon=1e-6):
    norm = under(weights, "norm")
    if normalize_first:
        return x + sublayer(layer_norm(norm, x, epsilon))
    return layer_norm(norm, x + sublayer(x), epsilon)


def causal(length):
    return np.tril(np.ones((length, length), bool))[None, None]


def _between(queries_real, keys_real):
    """Which queries may attend to which keys: real ones to real ones, bool of rank 4 or True."""
    queries = True if queries_real is None else np.asarray(queries_real, bool)[:, None, :, None]
    keys = True if keys_real is None else np.asarray(keys_real, bool)[:, None, None, :]
    return queries & keys


def encoder_layer(weights, x, real=None, normalize_first=False):
    """`real`: bool `(batch, source_len)`."""
    own = under(weights, "self_attention")
    x = residual(
        under(weights, "self_attention_residual"),
        x,
        lambda h: attention(own, h, h, allowed=_between(real, real))[0],
        normalize_first,
    )
    return _feed_forward_block(weights, x, normalize_first)


def decoder_layer(weights, x, memory, real=None, memory_real=None, normalize_first=False):
    own, cross = under(weights, "self_attention"), under(weights, "cross_attention")
    x = residual(
        under(weights, "self_attention_residual"),
        x,
        lambda h: attention(own, h, h, allowed=causal(x.shape[1]) & _between(real, real))[0],
        normalize_first,
    )
    x = residual(
        under(weights, "cross_attention_residual"),
        x,
        lambda h: attention(cross, h, memory, allowed=_between(real, memory_real))[0],
        normalize_first,
    )
    return _feed_forward_block(weights, x, normalize_first)


def _feed_forward_block(weights, x, normalize_first):
    return residual(
        under(weights, "feed_forward_residual"),
        x,
        lambda h: feed_forward(under(weights, "feed_forward"), h),
        normalize_first,
    )


def encoder(weights, x, num_layers, real=None, normalize_first=False):
    for i in range(num_layers):
        x = encoder_layer(under(weights, f"layer_{i}"), x, real, normalize_first)
    return layer_norm(under(weights, "norm"), x) if normalize_first else x


def decoder(weights, x, memory, num_layers, real=None, memory_real=None, normalize_first=False):
    for i in range(num_layers):
        x = decoder_layer(under(weights, f"layer_{i}"), x, memory, real, memory_real, normalize_first)
    return layer_norm(under(weights, "norm"), x) if normalize_first else x


def lstm(weights, x, hidden, cell):
    """A layer over one row from a state, gate by gate: input, forget, candidate, output. Returns states and state."""
    states = []
    for token in x:
        gates = token @ weights["kernel"] + hidden @ weights["recurrent_kernel"] + weights["bias"]
        i, f, candidate, o = np.split(gates, 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        cell = f * cell + i * np.tanh(candidate)
        hidden = o * np.tanh(cell)
        states.append(hidden)
    return np.array(states).reshape(len(x), len(hidden)), (hidden, cell)


def transformer(weights, source, target, num_layers, normalize_first=False, pad_id=0):
    """Logits `(batch, target_len, target_vocab_size)` for ids."""
    target_table = weights["target/tokens/embeddings"]
    source_table = weights.get("source/tokens/embeddings", target_table)
    d_model = target_table.shape[1]

    def embed(table, ids):
        return table[ids] * np.sqrt(d_model) + positions(ids.shape[1], d_model)

    real = source != pad_id
    memory = encoder(
        under(weights, "encoder"), embed(source_table, source), num_layers, real, normalize_first
    )
    states = decoder(
        under(weights, "decoder"), embed(target_table, target), memory, num_layers, memory_real=real,
        normalize_first=normalize_first,
    )  # fmt: skip
    return states @ target_table.T
