"""Networks, and calling them with explicit weights."""

from .net import CLASSIFIER, MODELS, Net, Out, switch_tf32_off

__all__ = ["CLASSIFIER", "MODELS", "Net", "Out", "switch_tf32_off"]
