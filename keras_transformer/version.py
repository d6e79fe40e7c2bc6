"""The version, readable without importing the package's needs."""

__version__ = "0.1.0"
