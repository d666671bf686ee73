"""The version; pyproject.toml takes it from here, so that a checkout that is not installed has it too."""

__version__ = "0.1.0"
