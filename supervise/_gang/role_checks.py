"""The checks of the roles of a gang, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervise.errors import SpecError
from supervise.roles import Role

if TYPE_CHECKING:
    from supervise._gang.spec import GangSpec


def check_roles(spec: GangSpec) -> None:
    """Refuse settings that cannot be used with `roles`, and roles that are not a valid gang together.

    Raises:
        SpecError: A setting or a role is not valid; the text names it.
    """
    given = {"entrypoint": spec.entrypoint, "args": spec.args, "cwd": spec.cwd}
    more = [name for name, value in given.items() if value is not None]
    usual = {"start_method": "spawn", "ready": "exec", "ready_timeout_s": 60.0}
    more += [name for name, value in usual.items() if getattr(spec, name) != value]
    if more:
        raise SpecError(f"{more[0]} does not go with roles; each Role has its own")
    roles: object = spec.roles
    if not isinstance(roles, Sequence) or not all(isinstance(role, Role) for role in roles) or not roles:
        raise SpecError("roles is not a list of roles; give at least one, such as [Role(name='store', ...)]")
    names = [role.name for role in roles]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"two roles have the name {name!r}; give each its own")
    if all(role.service for role in roles):
        raise SpecError("every role is a service; a gang needs a role that is not, after whose end the services stop")
    for role in roles:
        if role.restart is not None and spec.restart_policy is None:
            raise SpecError(
                f"role {role.name!r}: restart is {role.restart!r}, but the gang has no restart_policy; give it one"
            )
