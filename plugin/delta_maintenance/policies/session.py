"""One use of a policy: how its tables and their clones are found, with the access of the caller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from delta_maintenance.address import CatalogName
from delta_maintenance.policies.catalogs import CatalogMemory, OptionsAt, table_named
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery, FailedSearches, discover
from delta_maintenance.storage import Store


@dataclass(frozen=True, kw_only=True)
class PolicySession:
    """The tables of a policy for one command, task or step.

    Discovery and the search for clones remember what they read in the same folder.
    """

    policy: Policy
    storage_options: OptionsAt
    state: Store | None = None
    """The folder of the assessments; None to remember nothing between sessions."""
    writes: bool = True
    """Whether something is remembered; a dry run only reads what others remember."""

    @cached_property
    def memory(self) -> CatalogMemory | None:
        """The last listings of catalogs and patterns."""
        return None if self.state is None else CatalogMemory(self.state, writes=self.writes)

    def discover(self, failures: FailedSearches | None = None) -> Discovery:
        """Finds all tables of the policy, including those that its patterns match."""
        return discover(
            self.policy,
            storage_options=self.storage_options,
            memory=self.memory,
            failures=failures,
        )

    def table_in_catalog(self, name: str) -> PolicyTable:
        """Returns the table with a name in a catalog, by one request. Raises the errors of
        `table_named`.
        """
        return table_named(
            self.policy,
            CatalogName.parse(name),
            storage_options=self.storage_options,
            memory=self.memory,
        )

    def clones(self, discovered: Discovery | None = None) -> PolicyClones:
        """Returns the search for clones among all tables of the policy; `discovered` are these
        tables, if they were found just now.
        """
        failures = FailedSearches(() if discovered is None else discovered.unlisted)
        return PolicyClones(
            discover=partial(self.discover, failures),
            options_at=self.storage_options,
            policies=(self.policy,),
            discovered=discovered,
            state=self.state,
            writes=self.writes,
        )
