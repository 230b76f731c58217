"""Networks, called with explicit weights."""

from .net import CLASSIFIER, MODELS, Net, Out, build_module, build_net, switch_tf32_off
from .norm import NormReLU, has_kernels, norm_relu, switch_kernels
from .resnet import Head

__all__ = [
    "CLASSIFIER",
    "MODELS",
    "Head",
    "Net",
    "NormReLU",
    "Out",
    "build_module",
    "build_net",
    "has_kernels",
    "norm_relu",
    "switch_kernels",
    "switch_tf32_off",
]
