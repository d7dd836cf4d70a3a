"""Selects partitions by a condition over partition columns, such as `day >= '2024-01-01'`.

Supports a subset of SQL: comparisons with literals, IN, BETWEEN, IS NULL, AND, OR, NOT and
parentheses, with SQL's three-valued logic. Columns are referred to by logical names, ignoring case.
A literal is parsed as a partition value of the column's type, so numbers and dates are compared as
such. Conditions are evaluated over columns of distinct partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, InvalidRequestError
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import DeltaType

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>`(?:[^`]|``)+`|[A-Za-z_][A-Za-z_0-9]*)
      | (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": pc.equal,
    "==": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_WORDS = frozenset(
    ("and", "or", "not", "in", "is", "null", "between", "true", "false", "date", "timestamp")
)
_INSTANTS = ("timestamp", "timestamp_ntz")
_DAY = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def partition_filter(
    condition: str, strings: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
) -> pa.BooleanArray:
    """Returns which partitions satisfy the condition; null counts as not satisfied.

    `strings` are the partition values of each partition as in the log, by logical column name;
    `types` are their types. `InvalidRequestError` for a condition with a syntax error, a column
    that is not a partition column, or a value that does not match the column's type.
    """
    parser = _Parser(condition, strings, types)
    found = parser.parse()
    return pc.fill_null(found, False)


class _Parser:
    def __init__(
        self, condition: str, strings: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
    ) -> None:
        self._condition = condition
        self._columns = {name.lower(): name for name in types}
        self._strings = strings
        self._types = types
        self._typed: dict[str, pa.Array] = {}
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def parse(self) -> pa.Array:
        found = self._any_of()
        if self._next < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._next].text!r} is not expected here")
        return found

    def _split(self) -> Iterator[_Token]:
        at = 0
        while self._condition[at:].strip():
            match = _TOKEN.match(self._condition, at)
            if match is None:
                rest = self._condition[at:].strip()
                raise self._wrong(f"{rest[:20]!r} cannot be read")
            assert match.lastgroup is not None
            yield _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
            at = match.end()

    def _any_of(self) -> pa.Array:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("it is nested too deeply")
        found = self._all_of()
        while self._word("or"):
            found = pc.or_kleene(found, self._all_of())
        self._depth -= 1
        return found

    def _all_of(self) -> pa.Array:
        found = self._one()
        while self._word("and"):
            found = pc.and_kleene(found, self._one())
        return found

    def _one(self) -> pa.Array:
        negated = False
        while self._word("not"):
            negated = not negated
        if self._sign("("):
            found = self._any_of()
            self._expect(")")
        else:
            found = self._comparison()
        return pc.invert(found) if negated else found

    def _comparison(self) -> pa.Array:
        name = self._column()
        values = self._values(name)
        if self._word("is"):
            negated = self._word("not")
            if not self._word("null"):
                raise self._wrong("IS is to be followed by NULL or NOT NULL")
            return pc.is_valid(values) if negated else pc.is_null(values)
        negated = self._word("not")
        if self._word("between"):
            least = self._literal(name)
            if not self._word("and"):
                raise self._wrong("BETWEEN is to be followed by two values with AND between them")
            greatest = self._literal(name)
            inside = pc.and_kleene(pc.greater_equal(values, least), pc.less_equal(values, greatest))
            return pc.invert(inside) if negated else inside
        if self._word("in"):
            self._expect("(")
            found = pc.equal(values, self._literal(name))
            while self._sign(","):
                found = pc.or_kleene(found, pc.equal(values, self._literal(name)))
            self._expect(")")
            return pc.invert(found) if negated else found
        token = self._take()
        if negated or token is None or token.text not in _COMPARISONS:
            raise self._wrong(f"a comparison is missing behind {name}")
        return _COMPARISONS[token.text](values, self._literal(name))

    def _column(self) -> str:
        token = self._take()
        if token is None or token.kind != "name" or token.text.lower() in _WORDS:
            raise self._wrong("a partition column is missing")
        quoted = token.text.startswith("`")
        name = token.text[1:-1].replace("``", "`") if quoted else token.text
        found = self._columns.get(name.lower())
        if found is None:
            known = ", ".join(self._columns.values()) or "none, for the table has no partitions"
            raise self._wrong(
                f"{name} is not a partition column; the partition columns are: {known}"
            )
        return found

    def _values(self, name: str) -> pa.Array:
        if name not in self._typed:
            # The zone of a partition value without one is unknown, so all are read as UTC.
            parsed = parse_partition_values(self._strings[name], self._types[name], zone=UTC)
            self._typed[name] = parsed.values
        return self._typed[name]

    def _literal(self, name: str) -> pa.Scalar:
        token = self._take()
        if (
            token is not None
            and token.kind == "name"
            and token.text.lower()
            in (
                "date",
                "timestamp",
            )
        ):
            token = self._take()
        if token is None:
            raise self._wrong("a value is missing at its end")
        if token.kind == "text":
            text = token.text[1:-1].replace("''", "'")
        elif token.kind == "number" or token.text.lower() in ("true", "false"):
            text = token.text.lower()
        else:
            raise self._wrong(f"{token.text!r} is not a value; write strings and dates in quotes")
        kind = self._types[name]
        if text == "" or (token.kind == "text" and str(kind) == "string"):
            return pa.scalar(text or None, self._values(name).type)
        if str(kind) in _INSTANTS and _DAY.fullmatch(text):
            # As in SQL, a day is its first instant.
            text = f"{text} 00:00:00"
        try:
            return parse_partition_values(pa.array([text]), kind, zone=UTC).values[0]
        except CorruptTableError:
            raise self._wrong(f"{text!r} is not a {kind}, the type of {name}") from None

    def _take(self) -> _Token | None:
        if self._next == len(self._tokens):
            return None
        self._next += 1
        return self._tokens[self._next - 1]

    def _word(self, word: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next]
        if not found or found.kind != "name" or found.text.lower() != word:
            return False
        self._next += 1
        return True

    def _sign(self, sign: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next]
        if not found or found.kind != "sign" or found.text != sign:
            return False
        self._next += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._wrong(f"{sign!r} is missing")

    def _wrong(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"the condition {self._condition[:200]!r} cannot be used: {problem}",
            remedy="compare partition columns with values, as in day >= '2024-01-01' AND country "
            "IN ('DE', 'FR')",
        )
