"""The policy document: tables, and the maintenance of each of them.

Rules are merged in one way: for a table, the `defaults` come first, then those of its catalog and
of its schema, then the first pattern in the file that matches it, then its own entry. Mappings are
merged key by key; any other value replaces the earlier one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from delta_maintenance import address
from delta_maintenance.address import CatalogName, is_catalog_name
from delta_maintenance.catalogs.catalog import CatalogTable
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.policy_values import Address, PolicyModel
from delta_maintenance.policies.definition.budget import BudgetRule
from delta_maintenance.policies.definition.catalogs import (
    CatalogRule,
    NamePatternText,
    Where,
    catalog_name_of,
)
from delta_maintenance.policies.definition.ledger import LEDGER, Ledger, Prices
from delta_maintenance.policies.definition.patterns import NamePattern, Pattern
from delta_maintenance.policies.definition.reader import read_document
from delta_maintenance.policies.definition.rules import Rules


class TableEntry(Rules):
    """One table by address or by name, or all tables that match a pattern, with rules beyond the
    defaults.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    """For a table: a unique name for people and for stored state; by default its address. For a
    pattern: the prefix, followed by a slash, of the names of the tables it finds."""
    uri: Address | None = None
    """The address of one table; may contain `${env:NAME}`."""
    pattern: Address | None = None
    """Addresses of tables: `*` is any text within one folder's name, `**` any folders. `/**` at the
    end includes the root and everything below it."""
    catalog: NamePatternText | None = None
    """Names of tables in one of the `catalogs`: its key, then the parts of the name, such as
    `lake.sales.*`. `*` is any text within a part, `**` any number of parts."""
    exclude: tuple[Address, ...] = ()
    """For a pattern, or for names: patterns of what is excluded, with everything below."""
    where: Where | None = None
    """For names: conditions on what the catalog says of a table."""
    owner: str | None = None
    """A description for people; by default the owner in the catalog."""
    tags: tuple[str, ...] = ()
    """Tags for people."""

    if TYPE_CHECKING:
        # As in `Rules`.
        def __init__(self, **values: Any) -> None: ...

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        num_places = sum(place is not None for place in (self.uri, self.pattern, self.catalog))
        if num_places != 1:
            raise ValueError("a table has a uri, a pattern or a catalog; give one of them")
        if self.uri is not None and is_catalog_name(self.uri):
            raise ValueError(
                f"{self.uri} is a name in a catalog; write `catalog: KEY.SCHEMA.TABLE`, with the "
                "key of one of `catalogs`"
            )
        if self.name is not None and is_catalog_name(self.name):
            raise ValueError(f"{self.name} is a name in a catalog; give the address another name")
        if self.exclude and self.uri is not None:
            raise ValueError("only a pattern has exclusions; remove them")
        if self.where is not None and self.catalog is None:
            raise ValueError("only names in a catalog have conditions; remove `where`")
        if self.name is not None and self.catalog is not None:
            raise ValueError("a table in a catalog has its name there; remove `name`")
        return self

    @property
    def is_one(self) -> bool:
        """Whether the entry is about one table."""
        return self.pattern is None and (self.catalog is None or _names(self.catalog).is_name)

    def covers_name(self, below: Sequence[str]) -> bool:
        """Whether the parts of a name below its catalog match and are not excluded."""
        return (
            self.catalog is not None
            and _names(self.catalog).matches(below)
            and not self._excludes_name(below)
        )

    def allows(self, table: CatalogTable) -> bool:
        """Whether a table meets the conditions of the entry."""
        return self.where is None or self.where.holds(table)

    def leads_to(self, below: Sequence[str]) -> bool:
        """Whether a namespace, given its parts below its catalog, can contain a match."""
        return (
            self.catalog is not None
            and _names(self.catalog).leads_to(below)
            and not self._excludes_name(below)
        )

    def _excludes_name(self, below: Sequence[str]) -> bool:
        return any(_names(text).contains(below) for text in self.exclude)

    def covers(self, uri: str) -> bool:
        """Whether the address matches the pattern and is not excluded."""
        return (
            self.pattern is not None
            and _pattern(self.pattern).matches(uri)
            and not self.excludes(uri)
        )

    def uri_of(self, path: str) -> str:
        """For a pattern: the address of the table at a path below its root."""
        assert self.pattern is not None
        root = _pattern(self.pattern).root
        return str(address.Address.parse(root).join(path)) if path else root

    def name_of(self, path: str) -> str:
        """For a pattern: the name of that table."""
        return "/".join(name_part for name_part in (self.name, path) if name_part) or self.uri_of(
            path
        )

    def path_of(self, uri: str) -> str | None:
        """For a pattern: the path of a table below its root, however the address is spelled.

        None if the pattern does not cover the table.
        """
        if self.pattern is None:
            return None
        place, root = address.place_of(uri), _place_of_root(self.pattern)
        if not address.is_below(place, root):
            return None
        below = place[-1][len(root[-1]) :].removeprefix("/")
        return below if self.covers(self.uri_of(below)) else None

    def excludes(self, uri: str) -> bool:
        """Whether the address, or a folder above it, is excluded."""
        return any(_pattern(f"{text.removesuffix('/**')}/**").matches(uri) for text in self.exclude)


class PolicyTable(PolicyModel):
    """One table with all its rules. Can be converted to JSON."""

    name: str
    """Unique in its policy."""
    uri: str
    owner: str | None = None
    tags: tuple[str, ...] = ()
    comment: str | None = None
    """The comment in the catalog."""
    is_shallow_clone: bool = False
    """Whether the catalog says so; others tell nothing of it."""
    rules_from: tuple[str, ...] = ()
    """The parts of the policy that contributed rules beyond the defaults, the weakest first."""
    rules: Rules
    """The merged rules."""
    is_ledger: bool = False
    """Whether the table has the rules of the ledger. Nothing is due while it does not exist, or if
    it is another table: what records rows tells that.
    """

    @property
    def catalog_name(self) -> CatalogName | None:
        """The name in the catalog that lists the table; None for other tables."""
        return catalog_name_of(self.name)

    def answers_to(self, text: str) -> bool:
        """Whether a text is the name of the table, or its address in any form."""
        try:
            return text == self.name or address.place_of(text) == address.place_of(self.uri)
        except InvalidRequestError:
            return False


class Policy(PolicyModel):
    """The document. `load_policy` reads one from a file."""

    version: Literal[1]
    """The version of this format."""
    defaults: Rules = Rules()
    """Rules for every table."""
    catalogs: Mapping[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], CatalogRule] = Field(
        default_factory=dict
    )
    """Catalogs by a key, with which patterns of names start."""
    tables: tuple[TableEntry, ...] = ()
    """Tables by address or by name, and patterns."""
    ledger: Ledger | None = None
    """The Delta table that gets a row for each operation that ran, or only its address."""
    prices: Prices | None = None
    """What requests, storage and time cost. Without it, the ledger shows units only."""
    budget: BudgetRule | None = None
    """What the maintenance of all tables may take. Without it, all that is due is done."""

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        for subject, values in (
            ("named", [e.name or e.uri for e in self.tables if e.uri is not None]),
            ("at", [e.uri for e in self.tables if e.uri is not None]),
            ("at", [e.catalog for e in self.tables if e.catalog is not None and e.is_one]),
        ):
            if (twice := _first_repeated(values)) is not None:
                raise ValueError(f"two tables are {subject} {twice}; keep one of them")
        for entry in self.tables:
            for text in (entry.catalog, *entry.exclude) if entry.catalog is not None else ():
                if text is not None and _names(text).key not in self.catalogs:
                    raise ValueError(
                        f"{text} starts with no key of `catalogs`; "
                        f"write one of {', '.join(self.catalogs) or 'them'} first"
                    )
        if self.budget is not None and self.prices is None and self.budget.limits_money:
            raise ValueError("the budget limits money, but there are no `prices`; add them")
        if self.ledger is not None and (within := self._within_ledger(self.ledger.uri)) is not None:
            raise ValueError(
                f"{within} and the ledger {self.ledger.uri} lie within each other, so that a "
                "vacuum would find the files of both; give the ledger a folder of its own"
            )
        return self

    def _within_ledger(self, ledger: str) -> str | None:
        """The first table, or folder that is searched, within the ledger or around it."""
        at = address.place_of(ledger)
        for entry in self.tables:
            if entry.uri is not None:
                if address.lie_within_each_other(entry.uri, ledger):
                    return entry.uri
            elif entry.pattern is not None and address.is_below(_place_of_root(entry.pattern), at):
                return entry.pattern
        return None

    @cached_property
    def named_tables(self) -> tuple[PolicyTable, ...]:
        """The tables with an address in the document, in its order."""
        return tuple(
            self._table(entry.uri, entry.name or entry.uri, entry)
            for entry in self.tables
            if entry.uri is not None
        )

    @cached_property
    def ledger_table(self) -> PolicyTable | None:
        """The ledger with the rules by which it is maintained; None if there is no ledger, if it is
        not maintained, or if the document has an entry for it.
        """
        rule = self.ledger
        if rule is None or rule.maintenance is None or self._entry_at(rule.uri) is not None:
            return None
        is_name_taken = any(table.name == LEDGER for table in self.named_tables)
        layers = [(LEDGER, rule.own_rules), (LEDGER, rule.maintenance)]
        ledger = _table(Rules(), layers, rule.uri, rule.uri if is_name_taken else LEDGER)
        return ledger.model_copy(update={"rules_from": (LEDGER,), "is_ledger": True})

    @cached_property
    def patterns(self) -> tuple[TableEntry, ...]:
        """The entries whose tables are yet to be discovered (`policies.discovery`)."""
        return tuple(entry for entry in self.tables if entry.pattern is not None)

    @cached_property
    def names(self) -> Mapping[str, tuple[TableEntry, ...]]:
        """The entries whose tables the catalogs name, by the catalog's key."""
        return {
            key: tuple(e for e in self.tables if e.catalog and _names(e.catalog).key == key)
            for key in self.catalogs
        }

    def catalog_of(self, name: CatalogName) -> str | None:
        """The key of the catalog to which a name belongs; None if the policy has none."""
        return next(
            (
                key
                for key, catalog in self.catalogs.items()
                if catalog.catalog_kind is name.kind and catalog.below(key, name.parts)
            ),
            None,
        )

    def table_in(self, key: str, table: CatalogTable) -> PolicyTable | None:
        """A table that a catalog of this policy names, with its merged rules; None if no entry
        asks for it.
        """
        catalog = self.catalogs[key]
        below = catalog.below(key, table.name.parts) or ()
        entries = [
            entry for entry in self.names[key] if entry.covers_name(below) and entry.allows(table)
        ]
        if not entries:
            return None
        own_entry = next((entry for entry in entries if entry.is_one), None)
        pattern = next((entry for entry in entries if not entry.is_one), None)
        layers = catalog.rules_of(key, below)
        layers += [
            (entry.catalog or "", entry) for entry in (pattern, own_entry) if entry is not None
        ]
        policy_table = _table(self.defaults, layers, table.location, str(table.name))
        storage = catalog.storage_rule(table, policy_table.rules.storage)
        tags = tuple(f"{key}={value}" if value else key for key, value in table.tags.items())
        return policy_table.model_copy(
            update={
                "owner": policy_table.owner if policy_table.owner is not None else table.owner,
                "tags": policy_table.tags or tags,
                "comment": table.comment,
                "is_shallow_clone": table.is_shallow_clone,
                "rules": policy_table.rules.model_copy(update={"storage": storage}),
            }
        )

    def table_at(self, uri: str, *, name: str | None = None) -> PolicyTable:
        """The table at an address, with its merged rules, whether or not the document names it.

        A table of the document has the name and the address that `policies.discovery` gives it,
        however the address is spelled.
        """
        own_entry = self._entry_at(uri)
        if own_entry is not None and own_entry.uri is not None:
            return self._table(own_entry.uri, name or own_entry.name or own_entry.uri, own_entry)
        ledger = self.ledger_table
        if ledger is not None and address.place_of(uri) == address.place_of(ledger.uri):
            return ledger if name is None else ledger.model_copy(update={"name": name})
        pattern_entry = self._in_pattern(uri)
        if pattern_entry is not None:
            entry, path = pattern_entry
            return self._table(entry.uri_of(path), name or entry.name_of(path), None)
        uri = uri.rstrip("/") or uri
        return self._table(uri, name or uri, None)

    def has_table_at(self, uri: str) -> bool:
        """Whether the document names the table at an address, or has a pattern for it."""
        if self._entry_at(uri) is not None or self._in_pattern(uri) is not None:
            return True
        ledger = self.ledger_table
        return ledger is not None and address.place_of(uri) == address.place_of(ledger.uri)

    def address_of(self, name: str) -> str | None:
        """The address of the table with a name, as `policies.discovery` names it; None if the
        document neither has it nor finds it by a pattern. Whether it exists is not known.
        """
        for table in self.named_tables:
            if table.name == name:
                return table.uri
        if self.ledger_table is not None and self.ledger_table.name == name:
            return self.ledger_table.uri
        for entry in self.patterns:
            path = "" if name == entry.name else name
            path = path.removeprefix(f"{entry.name}/") if entry.name else path
            if entry.name_of(path) == name and entry.covers(entry.uri_of(path)):
                return entry.uri_of(path)
        return None

    def _entry_at(self, uri: str) -> TableEntry | None:
        exact = next((entry for entry in self.tables if entry.uri == uri), None)
        return exact or self._by_place.get(address.place_of(uri))

    def _in_pattern(self, uri: str) -> tuple[TableEntry, str] | None:
        paths = ((entry, entry.path_of(uri)) for entry in self.patterns)
        return next(((entry, path) for entry, path in paths if path is not None), None)

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, str, str], TableEntry]:
        entries = [entry for entry in self.tables if entry.uri is not None]
        return {address.place_of(e.uri): e for e in reversed(entries) if e.uri is not None}

    def table_of(self, entry: TableEntry, uri: str) -> PolicyTable:
        """A table that has the rules of this entry, wherever it is."""
        return _table(self.defaults, [(entry.pattern or uri, entry)], uri, entry.name or uri)

    def _table(self, uri: str, name: str, own_entry: TableEntry | None) -> PolicyTable:
        pattern = next((e for e in self.patterns if e.path_of(uri) is not None), None)
        layers = [(e.pattern or uri, e) for e in (pattern, own_entry) if e is not None]
        return _table(self.defaults, layers, uri, name)


def load_policy(
    path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
) -> Policy:
    """The policy in a YAML file, which may also be JSON.

    `environment` resolves `${env:NAME}` in addresses, by default that of the process; references in
    storage options and Spark properties are not resolved. Raises `InvalidRequestError`, which names
    the file, the line, the key, the problem and the remedy.
    """
    return read_document(
        Policy, path, environment=os.environ if environment is None else environment
    )


def current_policy(path: str) -> Policy:
    """Like `load_policy`; the same object as before if the age and the size of the file are those
    of before, because watchers ask for hundreds of tables.
    """
    try:
        status = os.stat(path)
    except OSError:
        # Raises an error that states the problem.
        return load_policy(path)
    # The first caller reads the file for all others.
    with _READING:
        return _policy_at(path, status.st_mtime_ns, status.st_size)


_READING = threading.Lock()


@lru_cache(maxsize=32)
def _policy_at(path: str, modified_ns: int, size: int) -> Policy:
    return load_policy(path)


def json_schema() -> dict[str, Any]:
    """The JSON schema of the document, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy of delta-maintenance",
        **{key: value for key, value in Policy.model_json_schema().items() if key != "title"},
    }


@lru_cache(maxsize=4096)
def _place_of_root(text: str) -> tuple[str, ...]:
    try:
        return address.place_of(_pattern(text).root)
    except InvalidRequestError:
        # A wildcard in place of the host, below which nothing is found.
        return ("", "")


_RULES = set(Rules.model_fields)


def _table(
    defaults: Rules, layers: Sequence[tuple[str, Rules]], uri: str, name: str
) -> PolicyTable:
    """`layers` are rules with the part of the policy that they come from, the weakest first."""
    entries = [rules for _, rules in reversed(layers) if isinstance(rules, TableEntry)]
    merged = _with_followers(_merge_rules(defaults, [rules for _, rules in layers]))
    if merged.readers:
        by = next(
            (rules for _, rules in reversed(layers) if "readers" in rules.model_fields_set), None
        )
        of_one = isinstance(by, TableEntry) and by.is_one
        readers = tuple(rule.in_entry(of_one_table=of_one) for rule in merged.readers)
        merged = merged.model_copy(update={"readers": readers})
    return PolicyTable(
        name=name,
        uri=uri,
        owner=next((entry.owner for entry in entries if entry.owner is not None), None),
        tags=next((entry.tags for entry in entries if entry.tags), ()),
        rules_from=tuple(place for place, _ in layers),
        rules=merged,
    )


def _merge_rules(defaults: Rules, layers: Sequence[Rules]) -> Rules:
    layers_given = [layer.model_dump(include=_RULES, exclude_unset=True) for layer in layers]
    if not any(layers_given):
        return defaults
    merged = defaults.model_dump(exclude_unset=True)
    for layer in layers_given:
        merged = _over(merged, layer)
    return Rules.model_validate(merged)


def _with_followers(rules: Rules) -> Rules:
    """Adds the operations that follow an expiry, if they have no rules of their own."""
    expire: Any = rules.value("expire")
    followers = {
        name: {"every": expire.every}
        for name in getattr(expire, "then", ())
        if name not in rules.model_fields_set
    }
    if not followers:
        return rules
    return Rules.model_validate(rules.model_dump(exclude_unset=True) | followers)


def _over(lower: Any, upper: Any) -> Any:
    if not isinstance(lower, Mapping) or not isinstance(upper, Mapping):
        return upper
    over = {key: _over(lower.get(key), value) for key, value in upper.items()}
    return {**lower, **over}


# Each pattern is matched against every table.
_pattern = lru_cache(maxsize=1024)(Pattern)
_names = lru_cache(maxsize=1024)(NamePattern)


def _first_repeated(values: Iterable[str]) -> str | None:
    return next((value for value, number in Counter(values).items() if number > 1), None)
