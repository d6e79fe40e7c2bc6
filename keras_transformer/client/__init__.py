"""A client of a running TensorFlow Serving. It needs no TensorFlow: NumPy, protobuf, and `requests` or `grpcio`."""

from keras_transformer.client.async_client import AsyncClient
from keras_transformer.client.client import Client
from keras_transformer.client.load import LoadReport, load_test
from keras_transformer.client.openai_app import openai_app

__all__ = ["AsyncClient", "Client", "LoadReport", "load_test", "openai_app"]
