"""Networks, and calling them with explicit weights."""

from .net import CLASSIFIER, MODELS, Net, Out, build_net, find_network, switch_tf32_off
from .resnet import Head

__all__ = ["CLASSIFIER", "MODELS", "Head", "Net", "Out", "build_net", "find_network", "switch_tf32_off"]
