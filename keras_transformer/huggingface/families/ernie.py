"""ERNIE: Sun et al., 2019, "ERNIE: Enhanced Representation through Knowledge Integration"; versions 1 and 2.

ERNIE 3's embedding of the task is refused.
"""

import dataclasses

from keras_transformer.huggingface.families import bert
from keras_transformer.huggingface.tokenizers.word_piece import WORD_PIECE

FAMILY = dataclasses.replace(
    bert.FAMILY,
    model_type="ernie",
    classes=bert.heads("Ernie", "ernie"),
    tokenizer=WORD_PIECE,
    prefix="ernie.",
    fixed={"use_task_id": False},
)
