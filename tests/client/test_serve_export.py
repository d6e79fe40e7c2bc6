"""The server of the tests, as docs/serving.md offers it: it serves an export of Keras's `model.export`, too."""

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow_serving")
from serve_export import warmed


@pytest.mark.slow
@pytest.mark.tensorflow
def test_an_export_without_warm_up_requests_is_served(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.export(tmp_path / "1", verbose=False)
    served = warmed(tmp_path / "1").served
    (name,) = served.signatures["serving_default"].inputs
    x = np.ones((5, 3), "float32")
    (answer,) = served.answer("serving_default", {name: x}).values()
    np.testing.assert_allclose(answer, model.predict(x, verbose=0), rtol=1e-5)
