"""The version, in a file that imports nothing: the build reads it, and any layer may."""

__version__ = "0.1.0"
