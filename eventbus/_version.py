"""The version, in its one place: the build reads it here, and so does the program."""

__version__ = "0.1.0"
