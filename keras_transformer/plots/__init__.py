"""Pictures and pages of what models compute."""

from keras_transformer.lazy import lazy_names

_HOMES = {"AttentionPage": "viewer", "attention": "viewer"}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__package__, _HOMES)
