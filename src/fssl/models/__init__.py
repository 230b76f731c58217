"""Networks, and calling them with explicit weights."""

from .net import MODELS, Net, Out

__all__ = ["MODELS", "Net", "Out"]
