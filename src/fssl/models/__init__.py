"""Networks, called with explicit weights."""

from .net import CLASSIFIER, MODELS, USUAL_LAYERS, Net, Out, build_module, build_net, switch_tf32_off
from .norm import NormReLU, has_kernels, norm_relu, switch_kernels
from .resnet import Head
from .trainable import Trainable, digest_of_tensors, narrowed

__all__ = [
    "CLASSIFIER",
    "MODELS",
    "USUAL_LAYERS",
    "Head",
    "Net",
    "NormReLU",
    "Out",
    "Trainable",
    "build_module",
    "build_net",
    "digest_of_tensors",
    "has_kernels",
    "narrowed",
    "norm_relu",
    "switch_kernels",
    "switch_tf32_off",
]
