"""Pictures and pages of what layers and models compute, and of how a training went.

`attention` makes a page for a browser. Every other function returns a `matplotlib.figure.Figure`: a notebook shows it,
`figure.savefig("picture.png")` writes it.
"""

from keras_transformer.lazy import lazy_names

_HOMES = {
    "AttentionPage": "viewer",
    "attention": "viewer",
    "attention_weights": "maps",
    "classified_images": "images",
    "confusion": "labels",
    "image_attention": "sources",
    "latencies": "histograms",
    "masks": "maps",
    "positions": "maps",
    "schedule": "curves",
    "speech_attention": "sources",
    "training_curves": "curves",
    "translation_attention": "maps",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__package__, _HOMES)
