"""The methods: the interface of a federated method, all methods by name, and the plug-ins."""

from .base import Method
from .names import METHODS, PLUGINS, build_method
from .optimizers import AdamW, Sgd

__all__ = ["METHODS", "PLUGINS", "AdamW", "Method", "Sgd", "build_method"]
