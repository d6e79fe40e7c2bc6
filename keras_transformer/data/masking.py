"""Masking of tokens, for masked-language-model pretraining."""

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_range

SPECIAL = ("pad_id", "unk_id", "bos_id", "eos_id", "mask_id")


class Masking:
    """Hides tokens that a model is to find again (Devlin et al., 2019, "BERT", section 3.1, task 1).

    Of a row's ordinary tokens a share is chosen, at least one: most become `[MASK]`, some a token drawn at random,
    which may be the same, the rest stay as they are. The targets are the tokens that were chosen, and padding
    everywhere else, which `MaskedCrossentropy` and the metrics do not count.

    `dataset.apply(masking)` masks the elements of a `tf.data.Dataset`. What is chosen follows from `seed` and an
    element's number in the dataset alone: `dataset.repeat().apply(masking)` masks each epoch otherwise.

    Args:
        tokenizer: Has `vocab_size`, `pad_id`, `unk_id`, `bos_id`, `eos_id` and `mask_id`: these are never chosen, and
            nothing becomes one of them but a mask.
        share: Share of the tokens that are chosen.
        masked: Share of the chosen that become `[MASK]`.
        replaced: Share of the chosen that become a token drawn at random.
        seed: Seed of the choice.

    Call arguments:
        dataset: Its elements are token ids, int `(batch, length)`, padded, or dicts with them as `token_ids`, such as
            `text.pack` makes.

    Returns:
        A dataset of `(inputs, targets)`: the elements with masked ids, and int32 `(batch, length)`.

    Raises:
        ValueError: If a share is out of range, or `tokenizer` has not all these ids.
    """

    def __init__(self, tokenizer, share=0.15, *, masked=0.8, replaced=0.1, seed=0):
        check_range(0, 1, above=True, share=share)
        check_range(0, 1, masked=masked, replaced=replaced)
        check_range(0, 1, **{"masked + replaced": masked + replaced})
        self.share = share
        self.masked = masked
        self.replaced = replaced
        self.seed = seed
        special = {name: getattr(tokenizer, name, None) for name in SPECIAL}
        missing = [name for name, token_id in special.items() if token_id is None]
        if missing:
            raise ValueError(
                f"`tokenizer` must have {', '.join(SPECIAL)}, as a `WordPieceTokenizer` has. "
                f"Received: tokenizer={tokenizer!r}, without {missing[0]}."
            )
        self.pad_id = tokenizer.pad_id
        self.mask_id = tokenizer.mask_id
        self._special = np.array(list(special.values()), "int32")
        self._ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size, dtype="int32"), self._special)

    def __call__(self, dataset):
        def masked(number, element):
            if not isinstance(element, dict):
                return self.mask(element, [self.seed, number])
            token_ids, targets = self.mask(element["token_ids"], [self.seed, number])
            return {**element, "token_ids": token_ids}, targets

        return dataset.enumerate().map(masked, num_parallel_calls=tf.data.AUTOTUNE)

    def mask(self, token_ids, seed):
        """Masks a batch.

        Args:
            token_ids: int `(batch, length)`, padded.
            seed: int `(2,)`.

        Returns:
            The ids with masks, and the targets, both int32 `(batch, length)`.
        """
        token_ids = tf.cast(token_ids, tf.int32)
        shape = tf.shape(token_ids)
        for_order, for_fate, for_others = tf.unstack(tf.random.split(tf.cast(seed, tf.int64), 3))
        ordinary = tf.reduce_all(token_ids[..., None] != self._special, axis=-1)
        order = tf.where(ordinary, tf.random.stateless_uniform(shape, for_order), 2.0)
        ranks = tf.argsort(tf.argsort(order, axis=-1), axis=-1)
        numbers = tf.reduce_sum(tf.cast(ordinary, tf.float32), axis=-1, keepdims=True)
        wanted = tf.maximum(1, tf.cast(tf.round(self.share * numbers), tf.int32))
        chosen = (ranks < wanted) & ordinary
        fate = tf.random.stateless_uniform(shape, for_fate)
        drawn = tf.random.stateless_uniform(shape, for_others, 0, len(self._ordinary), tf.int32)
        changed = tf.where(fate < self.masked + self.replaced, tf.gather(self._ordinary, drawn), token_ids)
        changed = tf.where(fate < self.masked, self.mask_id, changed)
        return tf.where(chosen, changed, token_ids), tf.where(chosen, token_ids, self.pad_id)
