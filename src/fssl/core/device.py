"""Choose the devices and the precision of a run."""

from collections.abc import Sequence
from typing import Any

import torch

from ..config import Config
from ..errors import UserError
from ..system.machine import forget_peak, peak_of_process


def choose_devices(config: Config) -> list[torch.device]:
    """Return the devices that share a run's clients; the first has the global model.

    It is a single device if clients train one after another or Flower assigns them, and never more than there are
    clients.
    """
    is_shared = config.protocol != "authors" and config.compute.engine == "local"
    most = config.train.clients_per_round or None  # 0: the folder's number of clients, which is not known yet
    return allowed_devices(config)[: most if is_shared else 1]


def choose_device(config: Config) -> torch.device:
    """Return the device with the global model."""
    return choose_devices(config)[0]


def allowed_devices(config: Config) -> list[torch.device]:
    """Return the devices that the settings name, or all GPUs; raise UserError if one is missing."""
    compute = config.compute
    if compute.devices is not None:
        return [known_device(name, compute.device) for name in compute.devices]
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device = 'cuda': no CUDA device is visible; use compute.device = 'cpu'")
    if compute.device == "cpu" or not torch.cuda.is_available():
        return [torch.device("cpu")]
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]


def known_device(name: str, kind: str) -> torch.device:
    """Return the named device; raise UserError if it is missing or of another type."""
    visible = torch.cuda.device_count()
    known = ["cpu", *(f"cuda:{i}" for i in range(visible))]
    if name not in known:
        raise UserError(f"compute.devices: '{name}' is not available; available: {', '.join(known)}")
    if kind not in ("auto", name.partition(":")[0]):
        raise UserError(f"compute.devices: '{name}' conflicts with compute.device = '{kind}'; remove compute.device")
    return torch.device(name)


def uses_bf16(config: Config) -> bool:
    """Return whether training computes in bf16; precision 'auto' means bf16 on a GPU and fp32 on a CPU."""
    precision = config.train.precision
    return precision == "bf16" or (precision == "auto" and choose_device(config).type == "cuda")


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the device, CUDA version and number of threads, for the run's env.json."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "cuda": torch.version.cuda if cuda else None,
        "threads": torch.get_num_threads(),
    }


def forget_peaks(devices: Sequence[torch.device]) -> None:
    """Start the peaks of memory anew: an earlier run of this process does not count."""
    forget_peak()
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_memory(devices: Sequence[torch.device]) -> dict[str, int]:
    """Return the peak so far, in bytes: of the tensors on the fullest GPU, or on a CPU of this process.

    Reading it is a call of the allocator, which waits for nothing.
    """
    gpus = [torch.cuda.max_memory_allocated(device) for device in devices if device.type == "cuda"]
    return {"gpu_memory": max(gpus)} if gpus else {"process_memory": peak_of_process()}
