"""The version, readable without importing the package's needs."""

__version__ = "0.1.0"
# The client introduces itself to a server by this name.
USER_AGENT = f"keras-transformer/{__version__}"
