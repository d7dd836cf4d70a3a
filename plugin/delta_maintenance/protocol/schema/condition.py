"""Parses a condition of SQL over columns into a tree.

Understands comparisons of a column with a literal, IN, BETWEEN, IS NULL, LIKE with a prefix, AND,
OR, NOT and parentheses. Other expressions are errors, or with `lenient` an `Opaque` part of the
tree, so that the understood parts around them can still be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, InvalidRequestError
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import DeltaType, to_arrow_type

REMEDY = "compare columns with values, as in day >= '2024-01-01' AND country IN ('DE', 'FR')"


Names = tuple[str, ...]
"""The name of a column, or the names from the outermost struct inwards."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value of a condition. Its type follows from the column that it is compared with."""

    text: str
    """Without quotes; numbers, `true` and `false` in lower case."""
    quoted: bool
    type_word: str | None = field(default=None, compare=False)
    """The type before the text, as in `DATE '2024-01-01'`, in lower case."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value."""

    column: Names
    sign: str
    """`=`, `<>`, `<`, `<=`, `>`, `>=`, or `<=>`, which no null satisfies here."""
    value: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    """A column whose value is in a list."""

    column: Names
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column without value."""

    column: Names


@dataclass(frozen=True, slots=True)
class Prefix:
    """A column whose text starts with a value."""

    column: Names
    value: Literal


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expression that is not understood."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a condition."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Both:
    """Two conditions joined by AND."""

    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Either:
    """Two conditions joined by OR."""

    left: Condition
    right: Condition


Leaf = Comparison | OneOf | IsNull | Prefix | Opaque
Condition = Leaf | Not | Both | Either


def parse_condition(text: str, *, lenient: bool = False) -> Condition:
    """Parses a condition. `InvalidRequestError` for text that is not understood; with `lenient`,
    such parts become `Opaque`.
    """
    if len(text) > _MOST_CHARACTERS:
        if lenient:
            return Opaque(text.strip())
        raise invalid_condition(text, f"it has more than {_MOST_CHARACTERS:,} characters")
    return _Parser(text, lenient=lenient).parse()


def join_conditions(kind: type[Both] | type[Either], operands: Sequence[Condition]) -> Condition:
    """Joins conditions, at least one, by AND or OR. The depth of the tree grows with the logarithm
    of their number, because trees are visited recursively.
    """
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return kind(join_conditions(kind, operands[:middle]), join_conditions(kind, operands[middle:]))


def leaves_of(condition: Condition) -> Iterator[Leaf]:
    """Yields the parts of a condition without NOT, AND and OR."""
    match condition:
        case Not(part):
            yield from leaves_of(part)
        case Both(left, right) | Either(left, right):
            yield from leaves_of(left)
            yield from leaves_of(right)
        case _:
            yield condition


def columns_of(condition: Condition) -> Iterator[Names]:
    """Yields the columns of a condition, with repetitions."""
    return (leaf.column for leaf in leaves_of(condition) if not isinstance(leaf, Opaque))


def opaque_parts(condition: Condition) -> Iterator[str]:
    """Yields the texts that are not understood."""
    return (leaf.text for leaf in leaves_of(condition) if isinstance(leaf, Opaque))


def literal_value(literal: Literal, kind: DeltaType) -> pa.Scalar | None:
    """Returns a literal as a value of a column's type; None if it does not match the type.

    A timestamp without a time zone is read as UTC.
    """
    text = literal.text
    if to_arrow_type(kind) is None:
        return None
    if literal.quoted and str(kind) == "string":
        return pa.scalar(text)
    if text == "":
        return None
    if str(kind) in _INSTANTS and _DAY.fullmatch(text):
        # As in SQL, a day is its first instant.
        text = f"{text} 00:00:00"
    try:
        return parse_partition_values(pa.array([text]), kind, zone=UTC).values[0]
    except CorruptTableError:
        return None


def invalid_condition(condition: str, problem: str) -> InvalidRequestError:
    """The error for a condition that cannot be used."""
    return InvalidRequestError(
        f"the condition {condition[:200]!r} cannot be used: {problem}", remedy=REMEDY
    )


_NAME = r"(?:`(?:[^`]|``)+`|[A-Za-z_][A-Za-z_0-9]*)"
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<name>{_NAME}(?:\.{_NAME})*)
      | (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z_0-9.]))
      | (?P<sign><=>|<=|>=|<>|!=|==|=|<|>|\(|\)|,)
      | (?P<other>\S)
    )""",
    re.VERBOSE,
)
_SIGNS = {
    **{sign: sign for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>")},
    "==": "=",
    "!=": "<>",
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WORDS = frozenset(
    ("and", "or", "not", "in", "is", "null", "between", "like", "true", "false", "case", "end")
)
_TYPES = ("date", "timestamp", "timestamp_ntz")
_INSTANTS = ("timestamp", "timestamp_ntz")
_DAY = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")
_DEEPEST = 50
_MOST_CHARACTERS = 1 << 20
"""The length of the longest condition, so that its tree has a limited size."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The text of a word in lower case; empty for other tokens."""
        return self.text.lower() if self.kind == "name" else ""


class _Parser:
    def __init__(self, condition: str, *, lenient: bool) -> None:
        self._condition = condition
        self._lenient = lenient
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._any_of()
        if self._next < len(self._tokens):
            problem = f"{self._tokens[self._next].text!r} is not expected here"
            if not self._lenient:
                raise self._wrong(problem)
            return Opaque(self._condition.strip())
        return condition

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self._condition.rstrip())
        while at < end:
            match = _TOKEN.match(self._condition, at)
            assert match is not None and match.lastgroup is not None
            kind = match.lastgroup
            if kind == "other" and not self._lenient:
                raise self._wrong(f"{self._condition[at:].strip()[:20]!r} cannot be read")
            yield _Token(kind, match[kind], match.start(kind))
            at = match.end()

    def _any_of(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("it is nested too deeply")
        operands = [self._all_of()]
        while self._word("or"):
            operands.append(self._all_of())
        self._depth -= 1
        return join_conditions(Either, operands)

    def _all_of(self) -> Condition:
        operands = [self._one()]
        while self._word("and"):
            operands.append(self._one())
        return join_conditions(Both, operands)

    def _one(self) -> Condition:
        if not self._lenient:
            return self._understood()
        start, depth = self._next, self._depth
        try:
            condition = self._understood()
            following = self._peek()
            if following is None or following.word in ("and", "or") or following.text == ")":
                return condition
        except InvalidRequestError:
            self._depth = depth
        self._next = start
        return self._skip_opaque()

    def _skip_opaque(self) -> Opaque:
        """Skips an expression that is not understood: to the next AND or OR beside it."""
        start, inside = self._next, 0
        while (token := self._peek()) is not None:
            if not inside and (token.word in ("and", "or") or token.text == ")"):
                break
            inside += (token.text == "(" or token.word == "case") - (
                token.text == ")" or token.word == "end"
            )
            self._next += 1
        tokens = self._tokens[start : self._next]
        if not tokens:
            return Opaque("")
        return Opaque(self._condition[tokens[0].at : tokens[-1].at + len(tokens[-1].text)])

    def _understood(self) -> Condition:
        negated = False
        while self._word("not"):
            negated = not negated
        if self._sign("("):
            condition = self._any_of()
            self._expect(")")
        else:
            condition = self._comparison()
        return Not(condition) if negated else condition

    def _comparison(self) -> Condition:
        if self._starts_with_value():
            value, token = self._literal(), self._take()
            if token is None or token.text not in _SIGNS:
                raise self._wrong("a comparison is missing behind a value")
            sign = _SIGNS[token.text]
            return Comparison(self._column(), _MIRRORED.get(sign, sign), value)
        column = self._column()
        if self._word("is"):
            negated = self._word("not")
            if not self._word("null"):
                raise self._wrong("IS is to be followed by NULL or NOT NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._word("not")
        condition: Condition
        if self._word("between"):
            lowest = self._literal()
            if not self._word("and"):
                raise self._wrong("BETWEEN is to be followed by two values with AND between them")
            condition = Both(
                Comparison(column, ">=", lowest), Comparison(column, "<=", self._literal())
            )
        elif self._word("in"):
            self._expect("(")
            values = [self._literal()]
            while self._sign(","):
                values.append(self._literal())
            self._expect(")")
            condition = OneOf(column, tuple(values))
        elif self._lenient and self._word("like"):
            condition = self._like(column)
        else:
            token = self._take()
            if negated or token is None or token.text not in _SIGNS:
                raise self._wrong(f"a comparison is missing behind {'.'.join(column)}")
            return Comparison(column, _SIGNS[token.text], self._literal())
        return Not(condition) if negated else condition

    def _like(self, column: Names) -> Condition:
        pattern = self._literal()
        plain = pattern.text.removesuffix("%")
        if not pattern.quoted or re.search(r"[%_\\]", plain):
            raise self._wrong("only patterns such as 'prefix%' can be used")
        if plain == pattern.text:
            return Comparison(column, "=", pattern)
        return Prefix(column, Literal(plain, quoted=True))

    def _starts_with_value(self) -> bool:
        token = self._peek()
        if token is None or not self._lenient:
            return False
        following = self._tokens[self._next + 1 : self._next + 2]
        typed = token.word in _TYPES and bool(following) and following[0].kind == "text"
        return token.kind in ("text", "number") or token.word in ("true", "false", "cast") or typed

    def _column(self) -> Names:
        token = self._take()
        if token is None or token.kind != "name" or token.word in _WORDS | {"date", "timestamp"}:
            raise self._wrong("a column is missing")
        return tuple(
            step[1:-1].replace("``", "`") if step.startswith("`") else step
            for step in re.findall(_NAME, token.text)
        )

    def _literal(self) -> Literal:
        token, type_word = self._take(), None
        if token is not None and token.word in _TYPES:
            type_word, token = token.word, self._take()
        if token is None:
            raise self._wrong("a value is missing at its end")
        if token.kind == "text":
            text = token.text[1:-1].replace("''", "'")
            return Literal(text, quoted=True, type_word=type_word)
        is_bare = token.kind == "number" or token.word in ("true", "false")
        if is_bare and type_word is None:
            return Literal(token.text.lower(), quoted=False)
        if self._lenient and token.word == "cast":
            self._expect("(")
            literal = self._literal()
            if not self._word("as") or self._take() is None:
                raise self._wrong("CAST is not complete")
            self._expect(")")
            return literal
        raise self._wrong(f"{token.text!r} is not a value; write strings and dates in quotes")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> _Token | None:
        token = self._peek()
        self._next += token is not None
        return token

    def _word(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.word != word:
            return False
        self._next += 1
        return True

    def _sign(self, sign: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "sign" or token.text != sign:
            return False
        self._next += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._wrong(f"{sign!r} is missing")

    def _wrong(self, problem: str) -> InvalidRequestError:
        return invalid_condition(self._condition, problem)
