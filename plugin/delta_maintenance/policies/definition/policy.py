"""The policy document: tables, and the maintenance of each of them.

Rules are merged in one way: for a table, the `defaults` come first, then the first pattern in the
file that matches its address, then its own entry. Mappings are merged key by key; any other value
replaces the earlier one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from delta_maintenance.operations.core.policy_values import Address, PolicyModel
from delta_maintenance.policies.definition.reader import read_document
from delta_maintenance.policies.definition.rules import Rules


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    `*` matches any text and `?` one character, both without slashes; `**` as a whole segment
    matches any number of folders, including none. Everything else is literal.
    """

    text: str

    @cached_property
    def root(self) -> str:
        """The fixed beginning, without its last slash: where discovery starts."""
        fixed = re.split(r"[*?]", self.text, maxsplit=1)[0]
        root = fixed.rpartition("/")[0] if fixed != self.text else fixed
        return root or "/"

    def leads_on(self, path: str) -> bool:
        """Whether a folder, relative to the root, can match or contain a match."""
        segments = path.split("/")
        for wanted, segment in zip(self._segments, segments, strict=False):
            if wanted == "**":
                return True
            if not _expression(wanted).fullmatch(segment):
                return False
        return len(segments) <= len(self._segments)

    def matches(self, uri: str) -> bool:
        """Whether an address matches the pattern."""
        return _expression(self.text.rstrip("/")).fullmatch(uri.rstrip("/")) is not None

    @cached_property
    def _segments(self) -> list[str]:
        return [part for part in self.text[len(self.root) :].split("/") if part]


@lru_cache(maxsize=4096)
def _expression(text: str) -> re.Pattern[str]:
    pieces = re.split(r"(/\*\*(?=/|$)|\*|\?)", text)
    return re.compile("".join(_WILD.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


_WILD = {"/**": "(?:/[^/]+)*", "*": "[^/]*", "?": "[^/]"}


class TableEntry(Rules):
    """One table by address, or all tables that match a pattern, with rules beyond the defaults."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """For a table: a unique name for people and for stored state; by default its address. For a
    pattern: the prefix, followed by a slash, of the names of the tables it finds."""
    uri: Address | None = None
    """The address of one table; may contain `${env:NAME}`."""
    pattern: Address | None = None
    """Addresses of tables: `*` is any text within one folder's name, `**` any folders. `/**` at the
    end includes the root and everything below it."""
    exclude: tuple[Address, ...] = ()
    """For a pattern: patterns of excluded addresses; everything below them is excluded too."""
    owner: str | None = None
    """A description for people."""
    tags: tuple[str, ...] = ()
    """Tags for people."""

    if TYPE_CHECKING:
        # As in `Rules`.
        def __init__(self, **values: Any) -> None: ...

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if (self.uri is None) == (self.pattern is None):
            raise ValueError("a table has either a uri or a pattern; give one of the two")
        if self.exclude and self.pattern is None:
            raise ValueError("only a pattern has exclusions; remove them")
        return self

    def covers(self, uri: str) -> bool:
        """Whether the address matches the pattern and is not excluded."""
        return (
            self.pattern is not None
            and _pattern(self.pattern).matches(uri)
            and not self.excludes(uri)
        )

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
    rules: Rules
    """The merged rules."""


class Policy(PolicyModel):
    """The document. `load_policy` reads one from a file."""

    version: Literal[1]
    """The version of this format."""
    defaults: Rules = Rules()
    """Rules for every table."""
    tables: tuple[TableEntry, ...] = ()
    """Tables by address, and patterns."""

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        for what, values in (
            ("named", [e.name or e.uri for e in self.tables if e.uri is not None]),
            ("at", [e.uri for e in self.tables if e.uri is not None]),
        ):
            if (twice := _repeated(values)) is not None:
                raise ValueError(f"two tables are {what} {twice}; keep one of them")
        return self

    @cached_property
    def named_tables(self) -> tuple[PolicyTable, ...]:
        """The tables with an address in the document, in its order."""
        return tuple(
            self._table(entry.uri, entry.name or entry.uri, entry)
            for entry in self.tables
            if entry.uri is not None
        )

    @cached_property
    def patterns(self) -> tuple[TableEntry, ...]:
        """The entries whose tables are yet to be discovered (`policies.discovery`)."""
        return tuple(entry for entry in self.tables if entry.pattern is not None)

    def table_at(self, uri: str, *, name: str | None = None) -> PolicyTable:
        """The table at an address, with its merged rules, whether or not the document names it."""
        uri = uri.rstrip("/") or uri
        own = next((entry for entry in self.tables if entry.uri == uri), None)
        return self._table(uri, name or (own.name if own is not None else None) or uri, own)

    def table_of(self, entry: TableEntry, uri: str) -> PolicyTable:
        """A table that has the rules of this entry, wherever it is."""
        return _table(self.defaults, [entry], uri, entry.name or uri)

    def _table(self, uri: str, name: str, own: TableEntry | None) -> PolicyTable:
        pattern = next((entry for entry in self.patterns if entry.covers(uri)), None)
        layers = [layer for layer in (pattern, own) if layer is not None]
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


def json_schema() -> dict[str, Any]:
    """The JSON schema of the document, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy of delta-maintenance",
        **{key: value for key, value in Policy.model_json_schema().items() if key != "title"},
    }


_RULES = set(Rules.model_fields)


def _table(defaults: Rules, layers: list[TableEntry], uri: str, name: str) -> PolicyTable:
    return PolicyTable(
        name=name,
        uri=uri,
        owner=next((each.owner for each in reversed(layers) if each.owner is not None), None),
        tags=next((each.tags for each in reversed(layers) if each.tags), ()),
        rules=_merged(defaults, layers),
    )


def _merged(defaults: Rules, layers: list[TableEntry]) -> Rules:
    layers_given = [layer.model_dump(include=_RULES, exclude_unset=True) for layer in layers]
    if not any(layers_given):
        return defaults
    merged = defaults.model_dump(exclude_unset=True)
    for each in layers_given:
        merged = _over(merged, each)
    return Rules.model_validate(merged)


def _over(lower: Any, upper: Any) -> Any:
    if not isinstance(lower, Mapping) or not isinstance(upper, Mapping):
        return upper
    over = {key: _over(lower.get(key), value) for key, value in upper.items()}
    return {**lower, **over}


# Each pattern is matched against every table.
_pattern = lru_cache(maxsize=1024)(Pattern)


def _repeated(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
