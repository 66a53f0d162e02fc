"""The calls of a gang's functions. They are pickled in the caller's thread, before any process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from supervise._gang import validation
from supervise._gang.rank_spec import naming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervise._gang.rank_spec import RankSpec
    from supervise._process.launch.function import Pickled, StartMethod


def pickled_calls(
    parts: Iterable[RankSpec], args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]]
) -> dict[int, Pickled]:
    """Return local rank to pickled call, for those ranks in `args` whose calls must be pickled."""
    pickled: dict[int, Pickled] = {}
    for part in parts:
        if part.travels:
            own = {part.role_rank(rank): args[rank] for rank in part.ranks if rank in args}
            near = {part.role_rank(rank): cpus[rank] for rank in part.ranks if rank in cpus}
            with naming(part.name):  # so that an error names the role and the role rank
                made = _calls_of_role(part, own, near)
            pickled |= {part.ranks[role_rank]: call for role_rank, call in made.items()}
    return pickled


def _calls_of_role(
    part: RankSpec, args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]]
) -> dict[int, Pickled]:
    own_main = validation.has_own_main(part.entrypoint, args)
    fn, method = cast("Callable[..., Any]", part.entrypoint), cast("StartMethod", part.start_method)
    calls = {rank: (fn, given) for rank, given in args.items()}
    if cpus and method == "forkserver":  # the server, which is not bound, forks the ranks
        from supervise._process.launch import numa

        calls |= {rank: (numa.OnCpus(fn, near), args[rank]) for rank, near in cpus.items() if rank in args}
    from supervise._process.launch.function import pickle_calls  # a gang of programs does not need it

    return pickle_calls(calls, method, own_main=own_main)
