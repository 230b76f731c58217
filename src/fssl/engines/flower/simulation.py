"""Flower's simulation engine: clients as actors of a Ray cluster, the server's half in this process."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from logging.handlers import MemoryHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...config import Config
from ...core.device import choose_device
from ...core.federation import Federation
from ...errors import RunError, UserError, complain
from ...system.machine import cores
from ..engine import Engine, MakeEngine
from .client_app import app as client_app
from .fleet import Policy, flower_engine
from .internals import EMPTY_POOL, LOGGER, count_actors, keep_ray_private
from .masked import make_fleet
from .nodes import AnyNode

if find_spec("ray") is None:  # it is imported late
    raise ImportError("Ray is not installed")
T = TypeVar("T")
FLOWER_HOME = "FLWR_HOME"
OPEN_CLUSTER = (
    "this process and each node of the cluster listen on all network interfaces, and Ray runs code for anyone who"
    " reaches these ports, unless the cluster has a token (RAY_AUTH_MODE=token); keep it behind a firewall"
)


def simulate(config: Config, log: Path, work: Callable[[MakeEngine], T]) -> T:
    """Return the result of work that needs engines: all clients train in one Ray cluster, which ends with the work."""
    keep_ray_private(is_ours=not config.compute.ray_address)  # before Ray is imported
    from flwr.simulation import run_simulation

    resources = client_resources(config)
    done: list[T] = []
    server_app = ServerApp()
    with logged(log) as write_down, left_behind() as folder, cluster(config, resources, folder) as actors:

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            def make(federation: Federation) -> Engine:
                write_down()
                return simulated_engine(federation, grid, actors)

            done.append(work(make))

        run_simulation(
            server_app,
            client_app,
            num_supernodes=config.partition.clients or config.train.clients_per_round,
            backend_config={"client_resources": dict(resources)},
        )
    if not done:
        raise RunError(f"Flower's simulation ended early; see {log}")
    return done[0]


def simulated_engine(federation: Federation, grid: Grid, actors: int) -> Engine:
    return flower_engine(make_fleet(federation, grid, AnyNode(grid), Policy(window=2 * actors)))


def client_resources(config: Config) -> dict[str, float]:
    """Return the resources that one client takes of the cluster."""
    if choose_device(config).type == "cuda":
        return {"num_cpus": 1, "num_gpus": 1 / (config.compute.clients_per_gpu or 1)}
    return {"num_cpus": config.compute.threads or 1, "num_gpus": 0.0}


@contextmanager
def left_behind() -> Iterator[str]:
    """Yield a folder for the files that Ray and Flower leave behind, and remove it at the end."""
    before = os.environ.get(FLOWER_HOME)
    with TemporaryDirectory(prefix="ray-", dir=os.environ.get("RAY_TMPDIR"), ignore_cleanup_errors=True) as folder:
        os.environ[FLOWER_HOME] = before or folder  # the user's, if there is one; otherwise Flower makes ~/.flwr
        try:
            yield folder
        finally:
            if before is None:
                del os.environ[FLOWER_HOME]


@contextmanager
def cluster(config: Config, resources: dict[str, float], folder: str) -> Iterator[int]:
    """Start a Ray cluster of this machine's cores, or join a running one; yield how many clients fit."""
    import ray

    address, lanes = config.compute.ray_address, config.compute.lanes
    check_address(address)
    where: dict[str, Any] = {"address": address} if address else {"address": "local", "num_cpus": lanes or cores()}
    if address:
        complain(f"WARNING: compute.ray_address = {address!r}: {OPEN_CLUSTER}")
    else:  # Ray would otherwise join any cluster that it finds traces of; workers need our path
        where["_temp_dir"] = folder
        where["runtime_env"] = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    try:
        ray.init(
            **where, include_dashboard=None if address else False, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        what = f"compute.ray_address = {address!r}: no Ray cluster answers" if address else "Ray does not start"
        raise UserError(f"{what} ({str(error).splitlines()[0]})") from None
    try:
        yield count_actors(resources)
    except ValueError as error:
        if EMPTY_POOL not in str(error):
            raise
        raise UserError(f"the Ray cluster has no room for a client, which takes {resources}") from None
    finally:
        ray.shutdown()


def check_address(address: str | None) -> None:
    """Reject an address without a cluster."""
    # Ray itself would wait forever.
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise UserError(f"compute.ray_address = {address!r}: no Ray cluster answers ({error})") from None


@contextmanager
def logged(path: Path) -> Iterator[Callable[[], None]]:
    """Redirect Flower's log from the terminal to a file, once its folder exists."""
    logger = logging.getLogger(LOGGER)
    before, propagates = logger.handlers[:], logger.propagate
    memory = MemoryHandler(1000, flushLevel=logging.CRITICAL + 1)
    logger.handlers, logger.propagate = [memory], False

    def write_down() -> None:
        if memory.target is None:
            file = logging.FileHandler(path)
            file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
            memory.setTarget(file)
            memory.flush()
            memory.capacity = 1

    try:
        yield write_down
    finally:
        logger.handlers, logger.propagate = before, propagates
        target = memory.target
        memory.close()
        if target:
            target.close()
