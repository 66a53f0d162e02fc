"""`launch`: PyTorch's ``elastic_launch``, but with the agent of supervise."""

from __future__ import annotations

import os
import sys
import uuid
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from supervise import SuperviseError
from supervise.agent.elastic_agent import SupervisedElasticAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.launcher.api import LaunchConfig


def launch(config: LaunchConfig, entrypoint: Callable[..., Any] | str, *args: Any, **settings: Any) -> dict[int, Any]:
    """Run a function or a program in the ranks of this node; return global rank to return value.

    If ranks may start again, or the number of nodes may change, ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE`` is set to 1,
    unless the caller has set it.

    Args:
        config: PyTorch's settings of the nodes, the rendezvous and the ranks. `run_id` is set if it is empty.
        entrypoint: A function that every rank calls, or the name or path of a program.
        *args: The arguments of every rank.
        **settings: ``grace``, ``watchdog``, ``containment``, ``gate`` and ``kill_mode`` of `SupervisedElasticAgent`.

    Raises:
        ChildFailedError: The class of PyTorch. A rank failed, and no restart is left.
        SignalException: The class of PyTorch. A termination signal arrived. The rendezvous stays open, so that other
            agents can continue.
        SpecError: A setting is not valid.
        SuperviseError: Other code of this process has stopped the ranks before their end.
    """
    config.run_id = config.run_id or str(uuid.uuid4().int)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    if config.max_nodes > 1 or config.max_restarts > 0:
        # In a shared store, gloo of a later attempt finds the addresses of an earlier one. PyTorch 2.13 reads the
        # variable for all but a static rendezvous, whose store is always shared. PyTorch 2.13 also publishes
        # the address of such a store in the first round of a rendezvous only. A node that joins in a later round, or
        # replaces another, would wait for it for 60 s, then all agents would fail.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    spec = _spec(config, entrypoint, args)
    agent = SupervisedElasticAgent(
        spec,
        config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout,
        **settings,
    )
    leave_open = False
    try:
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)  # of the agent, not of the ranks
    except BaseException as error:
        leave_open = isinstance(error, SignalException)
        if isinstance(error, Exception):
            events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if not leave_open:
            spec.rdzv_handler.shutdown()
    if result.is_failed():
        raise ChildFailedError(_name(entrypoint, args), result.failures)
    if result.state != WorkerState.SUCCEEDED:
        raise SuperviseError(f"{_name(entrypoint, args)}: other code has stopped the ranks before their end")
    values: dict[int, Any] = result.return_values
    return values


def _spec(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: tuple[Any, ...]) -> WorkerSpec:
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    address, port = _master(parameters)
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=get_rendezvous_handler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=address,
        master_port=port,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )


def _master(parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Return address and port of a static rendezvous. With any other backend, the agents agree on them themselves."""
    if parameters.backend != "static":
        return None, None
    address, port = parse_rendezvous_endpoint(parameters.endpoint.strip(), default_port=-1)
    if port == -1:
        raise ValueError(f"the endpoint {parameters.endpoint!r} has no port: add --master-addr and --master-port")
    return address, port


def _name(entrypoint: Callable[..., Any] | str, args: tuple[Any, ...]) -> str:
    """Return the name for the report of a failure. For a Python interpreter, return the name of its script."""
    if not isinstance(entrypoint, str):
        return entrypoint.__name__
    if entrypoint == sys.executable:
        return next((arg for arg in args if not arg.startswith("-")), "")
    return entrypoint
