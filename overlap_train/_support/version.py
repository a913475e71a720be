"""The version of the package; setup.cfg reads it."""

__version__ = "0.2.0"
