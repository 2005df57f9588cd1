"""`oncehouse grants`: the rights of each role as GRANT statements, to be read and run by an administrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.output import say, show_json
from oncehouse.cli.pager import paged
from oncehouse.clickhouse.preflight.grants import Role, role_grants
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.field_types import check_name
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.preflight.grants import Grant

_WORK = {
    Role.WRITER: "runs the pipeline: run, import, check",
    Role.MIGRATOR: "makes and changes tables: table create, schema apply",
    Role.READER: "looks and changes nothing: verify, status",
}


@dataclass(frozen=True, kw_only=True)
class OneGrant:
    statement: str
    why: str
    optional: bool


@dataclass(frozen=True, kw_only=True)
class RoleGrants:
    user: str
    grants: list[OneGrant]


@dataclass(frozen=True, kw_only=True)
class GrantList(Answer, of=("grants",)):
    roles: Inlined[dict[Role, RoleGrants]]


@paged()
def grants(
    file: File = DEFAULT_FILE,
    *,
    role: Annotated[Role | None, typer.Option("--role", help="Only this role. Default: all three.")] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The user to grant to. Default: oncehouse_ROLE.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the GRANT statements for the tables of FILE. Connects to no server and changes nothing."""
    if user is not None and role is None:
        raise ConfigurationError("--user names one user, so name its --role too: writer, migrator or reader.")
    if user is not None:
        _require_name(user)
    pipeline = load_pipeline(file)
    found = {
        each: (user or f"oncehouse_{each}", role_grants(pipeline, each))
        for each in Role
        if role in {None, each}
    }
    if as_json:
        show_json(GrantList(roles={each: _plain(*listed) for each, listed in found.items()}))
        return
    for each, (name, listed) in found.items():
        _show(each, name, listed)


def _require_name(user: str) -> None:
    try:
        check_name(user)
    except ValueError as error:
        raise ConfigurationError(f"--user: {error}") from None


def _plain(user: str, listed: Sequence[Grant]) -> RoleGrants:
    grants = [
        OneGrant(statement=grant.statement(user), why=grant.why, optional=grant.optional) for grant in listed
    ]
    return RoleGrants(user=user, grants=grants)


def _show(role: Role, user: str, listed: Sequence[Grant]) -> None:
    say(f"-- {role}: {_WORK[role]}")
    for grant in listed:
        if not grant.optional:
            say(f"{grant.statement(user)}; -- {grant.why}")
    if any(grant.optional for grant in listed):
        say("-- not needed; `oncehouse check` can say more with these:")
    for grant in listed:
        if grant.optional:
            say(f"-- {grant.statement(user)}; -- {grant.why}")
    say("")
