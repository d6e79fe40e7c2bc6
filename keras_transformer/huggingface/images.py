"""Reading of preprocessor_config.json, which describes how a checkpoint's images or its audio are prepared."""

from keras_transformer.checks import check
from keras_transformer.huggingface.files import read_config
from keras_transformer.huggingface.known_keys import PREPROCESSOR, check_keys
from keras_transformer.huggingface.speech import EXTRACTOR, PREPROCESSOR_CONFIG, spectrogram_of
from keras_transformer.layers import ImagePreprocessing

INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
DEFAULTS = {
    "do_resize": True,
    "size": 224,
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def preprocessing_from_huggingface(folder):
    """Makes the layer that prepares images or audio as transformers does for a checkpoint.

    An image processor rounds resized pixels to whole shades, and the layer does not. So a pixel can differ by one of
    256 shades.

    Args:
        folder: A path. The folder holds preprocessor_config.json.

    Returns:
        An `ImagePreprocessing`; for Whisper a `LogMelSpectrogram`.

    Raises:
        ValueError: If the file is missing or damaged, or asks for something that the layer does not do.
    """
    config = read_config(folder, PREPROCESSOR_CONFIG)
    if config.get("feature_extractor_type") == EXTRACTOR:
        return spectrogram_of(config, PREPROCESSOR_CONFIG)
    config = {**DEFAULTS, **config}
    check_keys(config, PREPROCESSOR, PREPROCESSOR_CONFIG)
    for key in ("do_center_crop", "do_pad"):
        if config.get(key):
            raise ValueError(
                f"`{key}` of {PREPROCESSOR_CONFIG} must be False: the library has nothing else. Received: {key}=True."
            )
    size = config["size"]
    if isinstance(size, dict):
        rule = f"`size` of {PREPROCESSOR_CONFIG} must have height and width alone."
        check(size.keys() == {"height", "width"}, rule, size=size)
        size = (size["height"], size["width"])
    rule = f"`resample` of {PREPROCESSOR_CONFIG} must be one of {sorted(INTERPOLATIONS)}."
    check(config["resample"] in INTERPOLATIONS, rule, resample=config["resample"])
    normalizes = config["do_normalize"]
    return ImagePreprocessing(
        size if config["do_resize"] else None,
        config["image_mean"] if normalizes else 0.0,
        config["image_std"] if normalizes else 1.0,
        config["rescale_factor"] if config["do_rescale"] else 1.0,
        INTERPOLATIONS[config["resample"]],
    )
