"""The version, readable without importing the package's needs."""

__version__ = "0.1.0"
USER_AGENT = f"keras-transformer/{__version__}"  # as which the client introduces itself to a server
