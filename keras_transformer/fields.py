"""Frozen dataclasses as objects of Keras."""

import dataclasses


class Fields:
    """Base of dataclasses whose configuration, in Keras's sense, is their fields."""

    def get_config(self):
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        return cls(**config)
