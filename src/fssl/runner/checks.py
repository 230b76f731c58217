"""Checks of settings that need no PyTorch, so that a command can make them before importing it."""

from collections.abc import Sequence
from typing import Any

from ..config import ENGINE, Config, check_fact
from ..errors import UserError, several
from ..system.machine import cores
from .loggers import check_loggers


def check_settings(configs: Sequence[Config], debug: bool = False) -> None:
    """Reject a data folder without effect, and an engine or logger that is not installed."""
    check_data_dir(configs)
    for config in configs:
        check_tools(config, debug)


def check_data_dir(configs: Sequence[Config]) -> None:
    """Reject a data folder that no run reads, since the user expects its images."""
    given = [config.data.dir for config in configs if config.data.dir]
    if given and all(config.card.is_embedded for config in configs):
        raise UserError(
            f"data.dir = '{given[0]}' has no effect: {configs[0].data.name} needs no files; remove data.dir,"
            " or use data.name = 'folder' for your own images"
        )


def check_tools(config: Config, debug: bool) -> None:
    if config.compute.threads is not None and config.compute.threads > cores():
        raise UserError(f"compute.threads = {config.compute.threads}: this machine has {several(cores(), 'core')}")
    check_engine(config, debug)
    check_loggers(config)


def check_engine(config: Config, debug: bool) -> None:
    """Reject settings that the engine does not support, before any compute."""
    engine = config.compute.engine
    check_fact(config, ENGINE, engine, f"compute.engine = '{engine}'", ", or use 'flower'")
    if engine == "local":
        return
    if debug:
        raise UserError("compute.engine = 'flower': only the local engine can check single steps; use 'local'", "debug")
    flower_simulation()


def flower_simulation() -> Any:
    """Return Flower's simulation engine; raise UserError if it is not installed."""
    try:
        from ..engines.flower.simulation import simulate
    except ImportError as error:
        raise UserError(f"compute.engine = 'flower' needs packages: pip install 'fssl[flower]' ({error})") from None
    return simulate
