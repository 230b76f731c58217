"""Flower's texts, statuses and private modules: all of this depends on Flower 1.41 and its Ray backend.

Look here first when Flower's version changes. Private modules are imported inside the functions, so that the command
line can use the texts without loading Flower.
"""

import base64
import hashlib
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from .identity import Node, fingerprint

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from numpy.typing import NDArray

LOGGER = "flwr"  # the name of Flower's logger
ERROR = "ERROR"  # the start of an error line in a log
CONNECTED = "SuperNode ID:"  # in the log of a SuperNode once it is connected
REFUSED = "Failed to activate SuperNode"  # in the log of a SuperNode whose key is not registered, or in use
DISMISSED = "SuperNode terminated gracefully"  # the same, once the server rejects its key, or on SIGTERM
RETRYING = re.compile(r"Connection attempt failed, retrying in ([\d.]+) seconds")  # the same, if nothing answers
RECONNECTED = "Connection successful after"  # the same, once something does
UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"  # the same, of a server that cannot prove its identity
UNAVAILABLE = "SuperLink is unavailable"  # in an error of the `flwr` command
UNAUTHORIZED = "Authentication failed. Please run"  # the same, without the operator's credential
EMPTY_POOL = "ActorPool is empty"  # in the ValueError of a Ray cluster with too few resources
ONLINE, UNREGISTERED = "online", "unregistered"  # statuses of a node
FOR_SITES = "/v1/fleet/"  # prefixes of a SuperLink's paths: nodes sign what they send here
FOR_OPERATORS = "/v1/control/"  # keys and runs; Flower has no separate credential for it
FOR_PROGRAMS = "/v1/runtime/"  # SuperExec and apps, by a shared secret and tokens
LIST_NODES, ACQUIRE_TASK = "/v1/control/list-nodes", "/v1/runtime/acquire-task"
LOOKS = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # in the environment: seconds between a SuperExec's polls for tasks
RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # in the environment, also on Linux
RAY_AUTH, RAY_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
WRAPPING = ("Message: ", "occurred. ")  # the prefixes of an exception's own message
MODULUS = 2**32  # of SecAgg+: masked numbers are whole, from 0 to here
SECAGG = "secaggplus_configs"  # the record that marks a message of SecAgg+


def run_superlink(words: list[str], guard: Callable[[Any], Any]) -> None:
    """Run Flower's SuperLink in this process; every request to it passes through `guard`."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    serve = uvicorn.run
    uvicorn.run = lambda app, **options: serve(guard(app), **{**options, "proxy_headers": False})
    sys.argv = ["flower-superlink", *words]
    flower_superlink()


class ForeignAppError(Exception):
    """The app of a server differs from the one that this site's fssl builds; the message gives the reason."""


def packed_app(files: dict[str, str]) -> bytes:
    """Return an app of these files as Flower packs it, uncompressed."""
    from flwr.cli.build import build_fab_from_files

    return build_fab_from_files({name: text.encode() for name, text in files.items()})[0]


def run_supernode(words: list[str], check: Callable[[str, str], None], rejected: Callable[[str], None]) -> None:
    """Run Flower's SuperNode in this process, polling five times as often as by default.

    `check` raises ForeignAppError if an app with this SHA-256 and stated version must not run here; `rejected` gets
    the reason.

    By default a SuperNode polls the server every 3 s, and its own programs every 0.5 s.
    """
    from flwr.supernode.cli import flower_supernode

    node = import_module("flwr.supernode.start_client_internal")
    node.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 5))  # type: ignore[attr-defined]
    keep_in_step(node)
    reject_foreign_apps(node, check, rejected)
    sys.argv = ["flower-supernode", *words]
    flower_supernode()


def keep_in_step(node: Any) -> None:
    """Let a SuperNode answer the message that it received last, also after errors in earlier ones.

    It takes a message, sends one answer, and takes the next. If a server dies while a message is on its way, that
    message stays with the node, is worked on later, and its answer goes out in place of the next one's: from then on
    the site is one answer late, and every round would miss it.
    """
    pull, push = node._pull_and_store_message, node._push_messages

    def pull_whole(**given: Any) -> int | None:
        run: int | None = pull(**given)
        if run is None:
            given["state"].delete_messages(message_ids=unanswered(given["state"]))
        return run

    def push_answer(**given: Any) -> None:
        push(**given)
        while unanswered(given["state"]):  # that was the answer to another message
            push(**given)

    node._pull_and_store_message, node._push_messages = pull_whole, push_answer


def reject_foreign_apps(node: Any, check: Callable[[str, str], None], rejected: Callable[[str], None]) -> None:
    """Let a SuperNode reject a run that ships another app than ours, without unpacking the app."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    pull = node._pull_and_store_message

    def pull_own(receive: Any, get_run: Any, get_fab: Any, **given: Any) -> int | None:
        received: list[Message] = []

        def keep() -> Any:
            if (found := receive()) is not None:
                received.append(found[0])
            return found

        def own_run(run_id: int) -> Any:
            run = get_run(run_id)
            check(run.fab_hash, run.fab_version)
            return run

        def own_fab(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            check(hashlib.sha256(fab.content).hexdigest(), "")
            return fab

        try:
            run: int | None = pull(receive=keep, get_run=own_run, get_fab=own_fab, **given)
        except ForeignAppError as error:
            rejected(str(error))
            reply = Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=received[0])
            node._insert_message(reply, given["state"], given["object_store"])
            return received[0].metadata.run_id
        return run

    node._pull_and_store_message = pull_own


def unanswered(state: Any) -> list[str]:
    """Return the messages that a SuperNode holds; an answered one is removed with its answer."""
    with state.lock_msg_store:
        held = [entry.message.metadata for entry in state.msg_store.values()]
    return [message.message_id for message in held if not message.reply_to_message_id]


def run_superexec(words: list[str], launch: Callable[[str, str], None], close: Callable[[], None]) -> None:
    """Run Flower's SuperExec in this process; clients' tasks, each an address and a token, are passed to `launch`."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.tls import get_client_tls_args

    class Launcher(SubprocessExecutor):
        def get_eligible_capacity(self, *given: Any, **options: Any) -> Any:
            return {TaskType.SERVER_APP, TaskType.CLIENT_APP}, set()  # Flower has tasks of other kinds

        def launch(self, spec: Any) -> Any:
            if spec.task_type == TaskType.CLIENT_APP:
                launch(spec.runtime_api_address, spec.token)
                return LaunchResult.accepted()
            words = [TASK_TYPE_TO_COMMAND[spec.task_type], "--runtime-api-address", spec.runtime_api_address]
            words += get_client_tls_args(spec.insecure, spec.root_certificates_path)
            with TemporaryFile() as secret:  # unnamed, so that no other process finds it; argv is readable by all
                secret.write(spec.token.encode())
                secret.seek(0)
                words += ["--parent-pid", str(spec.parent_pid), "--token-file", f"/dev/fd/{secret.fileno()}"]
                subprocess.Popen(words, pass_fds=[secret.fileno()])
            return LaunchResult.accepted()

        def close(self) -> None:
            close()

    module = import_module("flwr.supercore.superexec.run_superexec")
    module.get_executor = lambda *args, **options: Launcher()  # type: ignore[attr-defined]
    os.environ[LOOKS] = "0.1"
    sys.argv = ["flower-superexec", *words]
    flower_superexec()


def run_client_task(address: str, token: str) -> None:
    """Run a task of the SuperNode at this address of this machine; unlike in Flower, the process stays alive.

    The app is the installed one: nothing that came with the run is unpacked or imported.
    """
    from .client_app import app

    module = import_module("flwr.supernode.runtime.run_clientapp")
    tidy_up: list[Callable[[], None]] = []

    def leave(**options: Any) -> None:
        for handler in tidy_up:
            handler()

    module.register_signal_handlers = lambda **given: tidy_up.extend(given["exit_handlers"])  # type: ignore[attr-defined]
    module.flwr_exit = leave  # type: ignore[attr-defined]
    module.install_from_fab = lambda content, **given: None  # type: ignore[attr-defined]
    module.get_load_client_app_fn = lambda **given: lambda *names: app  # type: ignore[attr-defined]
    module.run_clientapp(runtime_api_address=address, token=token, insecure=True)


def credentials(address: str, token: str) -> dict[str, str]:
    """Return the `flwr` command's record of an account at a server; it sends the token with each request."""
    kept = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": token}
    return {f"flower.account-auth.{address}.{key}": base64.b64encode(v.encode()).decode() for key, v in kept.items()}


def registered_nodes(address: str, root: bytes | None, token: str) -> list[Node]:
    """Return all nodes that a SuperLink knows, with their keys (the `flwr` command does not show these).

    Raises ConnectionError if nothing answers there, and PermissionError if the token is not the operator's.
    """
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient

    class WithToken:
        def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
            context.request.headers["Authorization"] = f"Bearer {token}"
            return call_next(context)

    try:
        with ControlHttpClient.from_server_address(address, root is None, root, [WithToken()]) as client:
            return [as_node(info) for info in client.ListNodes(ListNodesRequest()).nodes_info]
    except httpx.HTTPError as error:
        refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED
        raise (PermissionError if refused else ConnectionError)(str(error)) from None


def as_node(info: Any) -> Node:
    """Return a node from Flower's record of it."""
    time = info.last_activated_at if info.status == ONLINE else info.last_deactivated_at
    since = f"{time[:19].replace('T', ' ')}Z" if time else ""  # it is UTC
    return Node(info.node_id, fingerprint(info.public_key), info.name, info.status, since)


def has_finished(status: str) -> bool:
    """Return whether a run's status is final: `finished:completed`, `finished:failed` or `finished:stopped`."""
    return status.startswith("finished")


def lacks_connection(reason: str, connection: str) -> bool:
    """Return whether the `flwr` command failed because its configuration does not name this connection."""
    text = reason.lower()
    return f"connection '{connection}'" in text and "not found" in text


def unwrap_message(reason: str) -> str:
    """Return the message of an exception at a client, without Flower's wrapping."""
    text = re.sub(r"^<class '[^']*'>:<'", "", " ".join(reason.split()))
    for mark in WRAPPING:
        text = text.rpartition(mark)[2]
    return text.rstrip("'>") or "failed without a reason"


def keep_ray_private(is_ours: bool) -> None:
    """Let a Ray cluster that we start listen on 127.0.0.1, and answer only processes that have our token.

    Ray runs code from any client of its ports, and by default it listens on all network interfaces. Without clusters,
    as by default on Windows and macOS, it knows no other address than that of the loopback device. It reads all of this
    when it is imported: a script that has imported Ray before gets a cluster on 127.0.0.1 without a token.
    """
    os.environ[RAY_CLUSTERS] = "0" if is_ours else "1"
    if is_ours and RAY_AUTH not in os.environ and "ray" not in sys.modules:
        os.environ |= {RAY_AUTH: "token", RAY_TOKEN: secrets.token_hex(32)}
    from ray._private import ray_constants, services

    ray_constants.ENABLE_RAY_CLUSTER = not is_ours  # for a second run in one process
    # Without the dashboard, its process does nothing but ask the metadata services of three clouds where it runs,
    # whatever RAY_USAGE_STATS_ENABLED is.
    services.start_api_server = lambda *given, **options: ("", None)


def count_actors(resources: dict[str, float]) -> int:
    """Return the number of clients with these resources that fit into the running Ray cluster."""
    from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources

    return pool_size_from_resources(resources)


def clip_update(new: list["NDArray[Any]"], old: list["NDArray[Any]"], clip: float) -> None:
    """Move `new` towards `old`, in place, until their distance is at most `clip`."""
    from flwr.supercore.differential_privacy import compute_clip_model_update

    compute_clip_model_update(new, old, clip)


def add_noise(arrays: list["NDArray[Any]"], noise: float, clip: float, clients: int) -> None:
    """Add Gaussian noise, in place, to a mean over clients whose updates were clipped."""
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_stdv

    add_gaussian_noise_inplace(arrays, compute_stdv(noise, clip, clients))


class MaskTerms(NamedTuple):
    """The parameters of a round of SecAgg+."""

    threshold: int  # clients that opening requires
    max_weight: int  # of a client in the mean: weights are sent as shares of it
    range: float  # absolute values of a model are below it
    levels: int  # whole numbers that they are rounded to; the sum over all clients stays below the modulus


class ClientFacts(NamedTuple):
    """The facts that a client sends unmasked with its masked upload."""

    num_samples: int
    facts: dict[str, Any]


class HaltedError(Exception):
    """A round of SecAgg+ that opens nothing, and why."""


def mask(message: "Message", context: "Context", call_next: Callable[..., "Message"]) -> "Message":
    """Answer a message of SecAgg+ with Flower's client mod, which calls the app itself once in a round."""
    from flwr.client.mod import secaggplus_mod

    if SECAGG in message.content:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def to_be_masked(arrays: list["NDArray[Any]"], sent: ClientFacts) -> "RecordDict":
    """Return an app's answer for Flower's mod, which replaces the arrays by masked ones."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict

    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), sent.num_samples, sent.facts)
    return fitres_to_recorddict(result, keep_input=False)


class MaskedSum:
    """A round of SecAgg+ by Flower's workflow, to which this object is a strategy of the old kind.

    Args:
        ask: Sends messages to nodes and returns their answers.
        orders: The order for each node.
    """

    def __init__(
        self, ask: Callable[["list[Message]"], "list[Message]"], orders: dict[int, "RecordDict"], terms: MaskTerms
    ) -> None:
        from flwr.server.workflow import SecAggPlusWorkflow

        self.ask, self.orders = ask, orders
        self.mean: list[NDArray[Any]] = []
        self.workflow = SecAggPlusWorkflow(
            num_shares=1.0,  # every client has a share of every client's secrets
            reconstruction_threshold=terms.threshold,
            max_weight=terms.max_weight,
            clipping_range=terms.range,
            quantization_range=terms.levels,
            modulus_range=MODULUS,
        )

    def run(self, round: int, check: Callable[[dict[int, ClientFacts]], None]) -> dict[int, ClientFacts]:
        """Return the facts from the nodes whose uploads are in `mean`; `check` sees them before anything is opened."""
        from flwr.app import ArrayRecord
        from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
        from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState

        workflow, state = self.workflow, WorkflowState()
        records = SimpleNamespace(
            config_records={MAIN_CONFIGS_RECORD: {Key.CURRENT_ROUND: round}},
            array_records={MAIN_PARAMS_RECORD: ArrayRecord()},
        )
        around: Any = SimpleNamespace(state=records, strategy=self, client_manager=self, history=None)
        grid: Any = SimpleNamespace(send_and_receive=lambda messages, timeout: self.ask(messages))
        require_enough(workflow.setup_stage(grid, around, state), "to exchange keys")
        require_enough(workflow.share_keys_stage(grid, around, state), "to share secrets")
        # Flower would ask for shares of a node that left before it sent any, and no node could answer.
        state.sampled_node_ids = set(state.active_node_ids)
        state.nid_to_neighbours = {n: state.nid_to_neighbours[n] & state.active_node_ids for n in state.active_node_ids}
        state.nid_to_fitins = {node: self.orders[node] for node in state.active_node_ids}
        require_enough(
            workflow.collect_masked_vectors_stage(grid, around, state), "of those that shared secrets to train"
        )
        facts = {
            proxy.node_id: ClientFacts(result.num_examples, result.metrics) for proxy, result in state.legacy_results
        }
        check(facts)
        require_enough(workflow.unmask_stage(grid, around, state), "to open the sum")
        return facts

    # The interface that the workflow needs from a strategy and its environment.

    def configure_fit(self, *given: Any) -> list[tuple[Any, Any]]:
        from flwr.common import FitIns, Parameters

        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.orders]

    def num_available(self) -> int:
        return len(self.orders)

    def aggregate_fit(self, round: int, results: list[tuple[Any, Any]], failures: Any) -> tuple[None, dict[str, Any]]:
        from flwr.common import parameters_to_ndarrays

        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def require_enough(enough: bool, purpose: str) -> None:
    if not enough:
        raise HaltedError(f"too few clients were left {purpose}")
