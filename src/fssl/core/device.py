"""Where a run computes, and with how many bits."""

import torch

from ..config import Config
from ..errors import UserError


def choose_device(config: Config) -> torch.device:
    """The device to compute on; a GPU that is asked for must be there."""
    wanted = config.compute.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device = 'cuda': no CUDA device is visible; use compute.device = 'cpu'")
    cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def uses_bf16(config: Config) -> bool:
    """Whether training computes in bf16; precision 'auto' means bf16 on a GPU and fp32 on a CPU."""
    precision = config.train.precision
    return precision == "bf16" or (precision == "auto" and choose_device(config).type == "cuda")
