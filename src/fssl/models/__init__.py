"""Networks, and calling them with explicit weights."""

from .net import CLASSIFIER, MODELS, Net, Out

__all__ = ["CLASSIFIER", "MODELS", "Net", "Out"]
