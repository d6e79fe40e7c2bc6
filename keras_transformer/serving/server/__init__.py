"""Writes files for servers of exports. It imports no TensorFlow and knows no servable."""
