"""A figure that notebooks show. Needs matplotlib."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A `matplotlib.figure.Figure` that Jupyter shows as a PNG, whether `pyplot` has drawn a figure before or not."""

    def _repr_png_(self):
        # Jupyter knows how to show figures only from the first one that `pyplot` makes.
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
