"""What a tuning and an evaluation of labels refuse."""

import numpy as np
import pytest

from keras_transformer.runs.tuning_rows import weights_of_classes


def test_weights_of_no_labels_are_refused():
    with pytest.raises(ValueError, match="The rows must have one label at least"):
        weights_of_classes(np.full((2, 3), -100))
