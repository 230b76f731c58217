"""The methods: what a federated method is, all of them by name, and the plug-ins."""

from .base import Method, Sgd
from .names import METHODS, PLUGINS, build_method

__all__ = ["METHODS", "PLUGINS", "Method", "Sgd", "build_method"]
