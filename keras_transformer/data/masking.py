"""Masks tokens for the pretraining of a masked language model."""

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_range

SPECIAL = ("pad_id", "unk_id", "bos_id", "eos_id", "mask_id")


class Masking:
    """Masks tokens that a model learns to predict (Devlin et al., 2019, "BERT", section 3.1, task 1).

    In each row a share of the ordinary tokens is chosen, at least one. By default 80 % of the chosen tokens become
    `[MASK]`, 10 % become a random token, which may be the same one, and 10 % stay. The targets are the chosen tokens,
    and padding everywhere else, which `MaskedCrossentropy` and the metrics ignore.

    `dataset.apply(masking)` masks the elements of a `tf.data.Dataset`. The choice depends only on `seed` and on the
    number of the element in the dataset, so `dataset.repeat().apply(masking)` masks each epoch differently.

    Args:
        tokenizer: An object with `vocab_size`, `pad_id` and `mask_id`, and with `unk_id`, `bos_id` and `eos_id` where
            the vocabulary has them; None, or no such attribute, where it does not. Special ids in a row are never
            chosen, and no token becomes one of them except `mask_id`.
        share: Share of the ordinary tokens that are chosen, in (0, 1].
        masked: Share of the chosen tokens that become `[MASK]`, in [0, 1].
        replaced: Share of the chosen tokens that become a random token, in [0, 1].
        seed: Int, the seed of the choice.

    Call arguments:
        dataset: A `tf.data.Dataset`. Its elements are token ids, int `(batch, length)` or `(length,)`, padded, or
            dicts with these ids as `token_ids`, such as `text.pack` makes.

    Returns:
        A dataset of `(inputs, targets)`: the elements with masked ids, and int32 targets of the shape of the ids.

    Raises:
        ValueError: If a share is out of range, or `tokenizer` lacks `pad_id` or `mask_id`.

    >>> import types
    >>> tokenizer = types.SimpleNamespace(vocab_size=20, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    >>> masking = Masking(tokenizer, share=1.0, masked=1.0, replaced=0.0)
    >>> inputs, targets = masking.mask([[2, 11, 13, 3, 0]], seed=[0, 0])
    >>> inputs.numpy().tolist(), targets.numpy().tolist()
    ([[2, 4, 4, 3, 0]], [[0, 11, 13, 0, 0]])
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
        special = {name: token_id for name, token_id in special.items() if token_id is not None}
        missing = [name for name in ("pad_id", "mask_id") if name not in special]
        if missing:
            raise ValueError(
                "`tokenizer` must have `pad_id` and `mask_id`; a `WordPieceTokenizer` has them. "
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
            token_ids: int `(batch, length)` or `(length,)`, padded.
            seed: int `(2,)`, the seed of the choice.

        Returns:
            The masked ids and the targets, both int32 of the shape of `token_ids`.
        """
        token_ids = tf.cast(token_ids, tf.int32)
        shape = tf.shape(token_ids)
        order_seed, action_seed, token_seed = tf.unstack(tf.random.split(tf.cast(seed, tf.int64), 3))
        ordinary = tf.reduce_all(token_ids[..., None] != self._special, axis=-1)
        # A random order of the ordinary tokens; 2.0 is above every random number, so special ids come last.
        order = tf.where(ordinary, tf.random.stateless_uniform(shape, order_seed), 2.0)
        ranks = tf.argsort(tf.argsort(order, axis=-1), axis=-1)
        num_ordinary = tf.reduce_sum(tf.cast(ordinary, tf.float32), axis=-1, keepdims=True)
        num_chosen = tf.maximum(1, tf.cast(tf.round(self.share * num_ordinary), tf.int32))
        chosen = (ranks < num_chosen) & ordinary
        action = tf.random.stateless_uniform(shape, action_seed)
        index = tf.random.stateless_uniform(shape, token_seed, 0, len(self._ordinary), tf.int32)
        changed = tf.where(action < self.masked + self.replaced, tf.gather(self._ordinary, index), token_ids)
        changed = tf.where(action < self.masked, self.mask_id, changed)
        return tf.where(chosen, changed, token_ids), tf.where(chosen, token_ids, self.pad_id)
