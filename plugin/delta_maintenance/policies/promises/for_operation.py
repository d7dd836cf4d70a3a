"""What a policy keeps of a table, for an operation that somebody runs on the table without it.

This module must not load pydantic, which reading a policy needs: most operations have no policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_maintenance.address import Address, CatalogName
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.registry import AnyOperation

if TYPE_CHECKING:
    from delta_maintenance.operations.core.policy_values import StorageRule
    from delta_maintenance.policies.catalogs import OptionsAt
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.session import PolicySession
    from delta_maintenance.table.read.table import Table

VARIABLE = "DELTA_MAINTENANCE_POLICY"
"""The environment variable with the path of the policy of this machine."""
POLICY_HELP = (
    "keep what this policy keeps of the table: its kept versions, readers, clones and retentions"
)
_MOST_BYTES = 1 << 20
StorageOptions = Callable[[str], Mapping[str, str] | None]


def policies_here() -> Iterator[str]:
    """Yields the policies of the environment and of the working directory."""
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


def rule_options_over(given: Mapping[str, str]) -> OptionsAt:
    """Returns what looks up the storage options of a rule; the given ones take precedence and
    replace a connection.
    """

    def storage_options(rule: StorageRule, address: str) -> Mapping[str, str]:
        from delta_maintenance.policies.discovery import environment_options, resolved_options

        return {**resolved_options(rule), **given} if given else environment_options(rule, address)

    return storage_options


@dataclass(frozen=True, kw_only=True)
class Promises:
    """The promises of policies about the table of one operation."""

    record: AnyOperation
    address: str
    catalog_name: str | None
    options_at: StorageOptions
    """Returns the storage options of an address."""
    rule_options: OptionsAt
    """Returns the storage options that a rule of a policy refers to."""
    policy: str | None
    """The policy whose promises are kept; without one, they are warnings."""
    other_policies: Callable[[], Iterable[str]] = policies_here
    """Returns the policies that may name the table, if `policy` is None."""
    warn: Callable[[Iterable[str]], None]

    def keep(self, options: Any, table: Table) -> tuple[Any, StorageOptions]:
        """Returns the options with what the policy keeps of the table, and what looks up the
        storage options of an address.

        Raises `InvalidRequestError` if the policy does not name the table, and `RefusedError` for a
        retention that is shorter than that of the policy.
        """
        if self.policy is None:
            if self.record.keeps_for_holders and self.record.effects.deletes:
                self.warn(self._unheeded())
            return options, self.options_at
        if not self.record.keeps_for_holders:
            raise InvalidRequestError(
                f"{self.record.name} deletes nothing that a policy keeps",
                remedy="leave out --policy",
            )
        from delta_maintenance.policies.definition.policy import load_policy
        from delta_maintenance.policies.definition.rules import with_promises
        from delta_maintenance.policies.session import PolicySession

        policy = load_policy(self.policy)
        session = PolicySession(policy=policy, storage_options=self.rule_options, writes=False)
        entry = self._entry_of(policy, session)
        if entry is None:
            raise InvalidRequestError(
                "the policy does not name this table",
                file=self.policy,
                remedy="correct the path of the policy, or leave out --policy",
            )
        snapshot, clones = table.snapshot(), session.clones()
        entries = [entry, *clones.same_tables(snapshot, entry)]
        rules = [same_table.rules for same_table in entries]
        options = with_promises(options, self.record, rules, snapshot)
        if has_field(options, "clones"):
            options = replace(options, clones=(*options.clones, *clones.of(table, entry)))
        return options, partial(_options_at, entries, session, self.options_at)

    def _unheeded(self) -> Iterator[str]:
        """Yields a warning for each policy that names the table."""
        for path in self.other_policies():
            from delta_maintenance.policies.definition.policy import load_policy

            try:
                entry = self._entry_of(load_policy(path), None)
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
                f"the policy {path} names this table{kept}, and {self.record.name} does not "
                f"apply it: give --policy {path}"
            )

    def _entry_of(self, policy: Policy, session: PolicySession | None) -> PolicyTable | None:
        """Returns the table with its rules; None if the policy does not name it.

        A name in a catalog takes a request, if there is a session.
        """
        name = self.catalog_name
        if name is not None and policy.catalog_of(CatalogName.parse(name)) is not None and session:
            return session.table_in_catalog(name)
        uri = str(Address.parse(self.address).absolute())
        return policy.table_at(uri) if policy.has_table_at(uri) else None


def _options_at(
    entries: list[PolicyTable], session: PolicySession, default: StorageOptions, address: str
) -> Mapping[str, str] | None:
    for entry in entries:
        for reader in entry.rules.readers:
            if reader.address == address and reader.storage is not None:
                return session.storage_options(reader.storage, address)
    return default(address)
