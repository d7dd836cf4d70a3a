"""What a policy keeps of a table, for a verb that a person runs on the table itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_maintenance.address import CatalogName
from delta_maintenance.cli.arguments import ArgumentParser
from delta_maintenance.cli.output import warn
from delta_maintenance.cli.policy_tables import storage_options_of
from delta_maintenance.cli.spark_launcher import absolute
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.registry import AnyOperation

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.session import PolicySession
    from delta_maintenance.table.read.table import Table

VARIABLE = "DELTA_MAINTENANCE_POLICY"
"""The environment variable with the path of the policy of this machine."""
_MOST_BYTES = 1 << 20
StorageOptions = Callable[[str], Mapping[str, str] | None]


def add_policy_flag(parser: ArgumentParser, record: AnyOperation) -> None:
    """Adds `--policy` to the verb of an operation that keeps what others need."""
    if has_field(record.options, "holders"):
        parser.group("safety").add_argument(
            "--policy",
            metavar="FILE",
            help="keep what this policy keeps of the table: its kept versions, readers, clones and "
            "retentions",
        )


def keep_what_policy_keeps(
    record: AnyOperation,
    options: Any,
    table: Table,
    arguments: argparse.Namespace,
    storage_options: StorageOptions,
) -> tuple[Any, StorageOptions]:
    """Returns the options with what the policy of `--policy` keeps of the table, and what looks up
    the storage options of an address.

    Without the flag, a policy of this folder or of the environment that names the table is a
    warning. Raises `InvalidRequestError` if the policy of the flag does not name the table, and
    `RefusedError` for a retention that is shorter than that of the policy.
    """
    if not has_field(record.options, "holders"):
        return options, storage_options
    if arguments.policy is None:
        if record.effects.deletes:
            warn(_unheeded_policies(arguments))
        return options, storage_options
    from delta_maintenance.policies.definition.policy import load_policy
    from delta_maintenance.policies.definition.rules import with_promises
    from delta_maintenance.policies.session import PolicySession

    policy = load_policy(arguments.policy)
    session = PolicySession(
        policy=policy, storage_options=storage_options_of(arguments), writes=False
    )
    entry = _entry_of(policy, arguments, session)
    if entry is None:
        raise InvalidRequestError(
            "the policy does not name this table",
            file=arguments.policy,
            remedy="correct the path of the policy, or leave out --policy",
        )
    snapshot, clones = table.snapshot(), session.clones()
    entries = [entry, *clones.same_tables(snapshot, entry)]
    options = with_promises(options, record, [each.rules for each in entries], snapshot)
    if has_field(options, "clones"):
        options = replace(options, clones=(*options.clones, *clones.of(table, entry)))
    return options, partial(_options_at, entries, session, storage_options)


def _options_at(
    entries: list[PolicyTable], session: PolicySession, default: StorageOptions, address: str
) -> Mapping[str, str] | None:
    for entry in entries:
        for reader in entry.rules.readers:
            if reader.address == address and reader.storage is not None:
                return session.storage_options(reader.storage, address)
    return default(address)


def _unheeded_policies(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields a warning for each policy of this folder or environment that names the table."""
    for path in _policies_here():
        from delta_maintenance.policies.definition.policy import load_policy

        try:
            entry = _entry_of(load_policy(path), arguments, None)
        except DeltaMaintenanceError:
            continue
        if entry is None:
            continue
        holders = entry.rules.holders
        names = [*(f"kept version {kept.name}" for kept in holders.keep)]
        names += [*(f"{reader.kind} {reader.name}" for reader in holders.readers)]
        names += [*(f"clone {clone}" for clone in holders.clones)]
        kept = f" and keeps versions or files of it ({', '.join(names)})" if names else ""
        yield (
            f"the policy {path} names this table{kept}, and this verb knows nothing of it: give "
            f"--policy {path}"
        )


def _policies_here() -> Iterator[str]:
    named = os.environ.get(VARIABLE)
    paths = [*([Path(named)] if named else ()), *sorted(Path().glob("*.y*ml"))]
    for path in dict.fromkeys(paths):
        try:
            is_small = path.stat().st_size <= _MOST_BYTES
            # Loading what reads policies takes longer than many operations.
            if is_small and b"\ntables:" in b"\n" + path.read_bytes():
                yield os.fspath(path)
        except OSError:
            continue


def _entry_of(
    policy: Policy, arguments: argparse.Namespace, session: PolicySession | None
) -> PolicyTable | None:
    """Returns the table of the command line with its rules; None if the policy does not name it.

    A name in a catalog takes a request, if there is a session.
    """
    name = arguments.catalog_name
    if name is not None and policy.catalog_of(CatalogName.parse(name)) is not None and session:
        return session.table_in_catalog(name)
    uri = absolute(arguments.table)
    return policy.table_at(uri) if policy.has_table_at(uri) else None
