"""Steps of a search whose hypotheses share one cache, for whatever model."""

from keras import ops

from keras_transformer.layers.cache import TreeCache


def tree_search(decode_rows, decoder, batch_size, width, trunk, starts=None):
    """The step of a search whose hypotheses share one cache, and the cache to begin with.

    Args:
        decode_rows: `decode_rows(tokens, cache=, index=, positions=, key_positions=, attention_mask=)`, which gives
            logits and the new cache of tokens int `(batch, length)`.
        decoder: The `Decoder` whose cache it is.
        batch_size: Number of rows.
        width: Number of hypotheses for each row.
        trunk: Number of slots for what all hypotheses begin with.
        starts: int `(batch,)`, where each row starts, when rows are padded on the left, or None.

    Returns:
        `step(tokens, cache, index) -> (logits, cache)`, as `decoding.decode` takes it, and a `TreeCache`.
    """

    def step(tokens, cache, index):
        _, branches, length = ops.shape(tokens)
        cache, place = cache.at(index, length, starts)
        logits, layers = decode_rows(
            ops.reshape(tokens, (batch_size, -1)),
            cache=cache.layers,
            index=place.slot,
            positions=place.positions,
            key_positions=place.key_positions,
            attention_mask=place.mask,
        )
        logits = ops.reshape(logits, (batch_size, branches, length, logits.shape[-1]))
        return logits, cache._replace(layers=layers)

    ancestors = ops.zeros((batch_size, width, 0), "int32")
    return step, TreeCache(decoder.empty_cache(batch_size, trunk), ancestors)
