"""The version, in one place: the build and the package both read it here."""

__version__ = "0.2.0"
