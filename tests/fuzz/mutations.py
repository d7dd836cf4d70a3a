"""Kinds of damage to a file of a table, from one bit to the whole file.

All choices come from the given random generator, so that a seed determines a case.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.tables import Files
from tests.support.hostile.bombs import BOMBS
from tests.support.hostile.encrypted_files import encrypted
from tests.support.tables import actions as log
from tests.support.tables.table_builder import LOG

Mutated = dict[str, bytes]
"""The files of a table by path, to be changed in place."""

_BOMB_BYTES = 1 << 27
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400),
    *(0.5, 1e308, 1.0, -0.0, 253402300800000, -62135596800001),
)
TEXTS = (
    *("", " ", "a", "\x00", "a\x00b", "\n", "a\r\nb", "\ud800", "\udfff\ud800", "\u202egnp.exe"),
    *("\u2028", "é", "e\u0301", "../../etc/passwd", "/etc/passwd", "%2e%2e/x", "%", "%zz", "%00"),
    *("file:///etc/passwd", "s3://KEY:SECRET@bucket/x?sig=abc", "_delta_log/x", ".", "//", "a//b"),
    *("x" * 5000, "true", "interval 9999999999999999 years", "interval -1 day", "9" * 30, "1e999"),
    *("{", "null", "[[[[", '{"a":1}', "uvBn[lx{q8@P<9BNH/isA", "\\", '"', "<script>", "a=b/c=d"),
)
NAMES = (
    *("99999999999999999999.json", "09223372036854775807.json", "18446744073709551616.json"),
    *("00000000000000000000.json.tmp", "00000000000000000003.json.gz", "3.json", "-1.json"),
    "00000000000000000004.checkpoint.0000000001.9999999999.parquet",
    "00000000000000000004.checkpoint.0000000000.0000000000.parquet",
    "00000000000000000004.checkpoint.not-a-uuid.parquet",
    "00000000000000000002.00000000000000000001.compacted.json",
    "00000000000000000000.99999999999999999999.compacted.json",
    "00000000000000000001.99999999999999999999.checkpoint.parquet",
    *("_last_checkpoint", "_last_vacuum_info", "00000000000000000002.crc", ".\u202e.crc", "\udcff"),
    *("_sidecars/x.parquet", "_staged_commits/x.json", "a\nb.json", "00000000200000000000.json"),
)


def mutate(files: Files, chance: random.Random) -> tuple[Mutated, str]:
    """A table with one to three kinds of damage, and their descriptions."""
    mutated = dict(files.contents)
    told = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if not mutated:
            # The only file is gone already.
            break
        path = _some_file(mutated, chance)
        how = chance.choice(_ways(path))
        changed = _like(path, mutated, chance) if how is swap else how(mutated[path], chance)
        told.append(f"{how.__name__} of {path!r}")
        if changed is None:
            del mutated[path]
        else:
            mutated[path] = changed
        if chance.random() < 0.1:
            name = f"{LOG}/{chance.choice(NAMES)}"
            told.append(f"a stranger {name!r}")
            mutated[name] = chance.choice((b"", b"{}", mutated.get(path, b"x"), b'{"add":{}}\n'))
    return mutated, ", ".join(told)


def _some_file(mutated: Mutated, chance: random.Random) -> str:
    of_log = sorted(path for path in mutated if path.startswith(f"{LOG}/"))
    others = sorted(path for path in mutated if not path.startswith(f"{LOG}/"))
    # Checkpoints are few among commits, but use most of the decoders.
    checkpoints = [path for path in of_log if "checkpoint" in path or "_sidecars" in path]
    # Where rows can be read, their files are damaged more often.
    shares = (0.2, 0.5) if any("/" in path for path in others) else (0.4, 0.85)
    for kind, share in zip((checkpoints, of_log, others), (*shares, 1), strict=True):
        if kind and chance.random() < share:
            return chance.choice(kind)
    return chance.choice(of_log or others)


Way = Callable[[bytes, random.Random], bytes | None]


def _ways(path: str) -> list[Way]:
    ways: list[Way] = [bit_flips, truncation, zeroes, insertion, other_bytes, swap]
    ways += [deletion][:1]
    if path.endswith(".parquet"):
        return [*ways, *(columns, columns, cells, cells, cells, bomb, encryption, footer_flips)]
    if path.startswith(LOG) or path.endswith(".json"):
        special = (spaces, nesting, crowd, lines, lines, escapes, vectors, vectors)
        return [*ways, *(values,) * 8, keys, keys, *special]
    return ways


def bit_flips(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 3, 30))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def footer_flips(data: bytes, chance: random.Random) -> bytes:
    """Flips bits of a Parquet footer, which contains all positions and sizes."""
    if len(data) < 12:
        return data
    size = min(int.from_bytes(data[-8:-4], "little"), len(data) - 8)
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        changed[len(data) - 8 - chance.randint(0, size)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def truncation(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.choice((0, 1, len(data) // 2, max(0, len(data) - 1), 4))]


def zeroes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((1, 8, 512, len(data))))
    return data[:start] + b"\0" * (end - start) + data[end:]


def insertion(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    noise = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 100))))
    return data[:at] + noise + data[at:]


def other_bytes(data: bytes, chance: random.Random) -> bytes:
    """The content of a different file."""
    return chance.choice(
        (b"", b"\n", b"\n \n", b"null", b"[]", b"{}", b"\xef\xbb\xbf{}", b"PAR1", b"PAR1PAR1")
        + (b"PARE" + data[4:-4] + b"PARE", data * 2, data[::-1], b"\xff\xfe{}", b"1", b'"a"')
    )


def deletion(data: bytes, chance: random.Random) -> None:
    return None


def swap(data: bytes, chance: random.Random) -> bytes:
    """Stands for the content of another file of the table, of the same kind."""
    return data


def _like(path: str, mutated: Mutated, chance: random.Random) -> bytes:
    suffix = path.rpartition(".")[2]
    return mutated[chance.choice([other for other in sorted(mutated) if other.endswith(suffix)])]


def vectors(data: bytes, chance: random.Random) -> bytes:
    """Gives a file action another deletion vector, or changes the one that it has."""

    def change(document: Any) -> None:
        actions = [
            place[0][place[1]]
            for place in _places(document)
            if place[1] in ("add", "remove") and isinstance(place[0][place[1]], dict)
        ]
        if not actions:
            return
        action = chance.choice(actions)
        old = action.get("deletionVector")
        vector = old if isinstance(old, dict) else {}
        vector = vector or {"storageType": "i", "pathOrInlineDv": "", "cardinality": 1}
        for _ in range(chance.choice((1, 2, 5))):
            name = chance.choice(
                ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
            )
            vector[name] = chance.choice(
                {"storageType": ("u", "i", "p", "x", None), "pathOrInlineDv": TEXTS}.get(
                    name, NUMBERS
                )
            )
        action["deletionVector"] = vector

    return _edited(data, chance, change)


def values(data: bytes, chance: random.Random) -> bytes:
    """Changes a value of a JSON line, possibly to another type."""

    def change(document: Any) -> None:
        place = _place(document, chance)
        if place is not None:
            holder, key = place
            holder[key] = _other(holder[key], chance)

    return _edited(data, chance, change)


def keys(data: bytes, chance: random.Random) -> bytes:
    """Removes, adds or renames a key."""

    def change(document: Any) -> None:
        place = _place(document, chance)
        if place is None or not isinstance(place[0], dict):
            return
        holder, key = place
        value = holder[key] if chance.random() < 0.5 else holder.pop(key)
        if chance.random() < 0.7:
            name = chance.choice((*TEXTS, "add", "remove", "path", "protocol", "unknown", "stats"))
            holder[name] = value

    return _edited(data, chance, change)


def nesting(data: bytes, chance: random.Random) -> bytes:
    """Replaces a value by a deeply nested one."""
    depth = chance.choice((5, 127, 130, 900, 5000, 200_000))
    opened, closed = chance.choice((("[", "]"), ('{"a":', "}")))
    deep = opened * depth + "1" + closed * depth

    def change(document: Any) -> None:
        place = _place(document, chance)
        if place is not None:
            place[0][place[1]] = "HOLE"

    return _edited(data, chance, change).replace(b'"HOLE"', deep.encode())


def crowd(data: bytes, chance: random.Random) -> bytes:
    """Adds thousands of keys to an object."""
    count = chance.choice((300, 3000, 20_000))

    def change(document: Any) -> None:
        place = _place(document, chance)
        if place is not None and isinstance(place[0], dict):
            crowded = {f"key{number}": "v" for number in range(count)}
            place[0][chance.choice(("partitionValues", "tags", "x"))] = crowded

    return _edited(data, chance, change)


def escapes(data: bytes, chance: random.Random) -> bytes:
    """Encodes a text in another way, or invalidly."""
    return chance.choice(
        (
            data.replace(b'"add"', b'"a\\u0064d"'),
            data.replace(b'"path"', b'"p\\u0061th"', 1),
            data.replace(b"path", b"path\\ud800", 1),
            data.replace(b':"', b':"\xff', 1),
            data.replace(b"1", b"NaN", 1),
            data.replace(b"1", b"1e5", 1),
            data.replace(b"1", b"01", 1),
            data.replace(b'{"', b'{"path":1,"path":2,"', 1),
        )
    )


def spaces(data: bytes, chance: random.Random) -> bytes:
    """Adds blanks in unusual places."""
    blank = chance.choice((b" ", b"\t", b"  ", b"\r"))
    changed = data.replace(b":", b" :" + blank).replace(b"{", b"{" + blank)
    return changed if chance.random() < 0.5 else data.replace(b"\n", blank + b"\n" + blank)


def lines(data: bytes, chance: random.Random) -> bytes:
    """Duplicates, removes, reorders or joins lines."""
    found = data.split(b"\n")
    at = chance.randrange(len(found))
    match chance.randrange(6):
        case 0:
            found.insert(at, found[at])
        case 1:
            del found[at]
        case 2:
            chance.shuffle(found)
        case 3:
            found[at] = found[at] + found[at]
        case 4:
            found = [line for line in found if b"add" not in line]
        case 5:
            found.insert(at, chance.choice((b"", b"{}", b"null", b'{"cdc": {"path": "x"}}', b"[]")))
    return b"\n".join(found)


def columns(data: bytes, chance: random.Random) -> bytes:
    """Changes the type of a Parquet column, removes it or duplicates it."""
    table = _table(data)
    if table is None or not table.num_columns:
        return data
    at = chance.randrange(table.num_columns)
    column = table.column(at)
    fake = chance.choice(
        (
            pa.array(["text"] * table.num_rows, pa.string()),
            pa.array([2**63 - 1] * table.num_rows, pa.int64()),
            pa.array([[1]] * table.num_rows, pa.list_(pa.int32())),
            pa.array([{"path": 5}] * table.num_rows),
            pa.array([{"path": "x", "version": "y"}] * table.num_rows),
            pa.array([b"\xff"] * table.num_rows, pa.binary()),
            pa.array([None] * table.num_rows, pa.struct([("path", pa.string())])),
            pa.nulls(table.num_rows, pa.int8()),
        )
    )
    name = table.column_names[at]
    match chance.randrange(4):
        case 0:
            table = table.remove_column(at)
        case 1:
            table = table.append_column(chance.choice((name, "x", "protocol")), column)
        case 2:
            # Arrow takes no lone surrogates in names.
            text = chance.choice(TEXTS[:20]).encode("utf-8", "replace").decode()
            table = table.set_column(at, text, column)
        case _:
            table = table.set_column(at, name, fake)
    return _parquet(table, data)


def cells(data: bytes, chance: random.Random) -> bytes:
    """Changes a value in a row of a Parquet file."""
    table = _table(data)
    if table is None or not table.num_rows:
        return data
    rows = table.to_pylist()
    for _ in range(chance.choice((1, 1, 4))):
        # PyArrow crashes when it writes a null within a map.
        places = [place for place in _places(rows) if isinstance(place[0], dict)]
        if places:
            holder, key = chance.choice(places)
            old = holder[key]
            new = _other(old, chance)
            fits = old is None or new is None or type(new) is type(old)
            holder[key] = new if fits and chance.random() < 0.8 else None
    if chance.random() < 0.2:
        rows = rows * chance.choice((0, 2, 50))
    try:
        changed = pa.Table.from_pylist(rows, schema=table.schema)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError):
        return bit_flips(data, chance)
    return _parquet(changed, data)


def bomb(data: bytes, chance: random.Random) -> bytes:
    """A few bytes that decode to many."""
    name = chance.choice(sorted(BOMBS))
    if name not in _BOMBS:
        actions = [log.protocol(), log.metadata()]
        _BOMBS[name] = BOMBS[name](actions, _BOMB_BYTES)
    return _BOMBS[name]


_BOMBS: dict[str, bytes] = {}


def encryption(data: bytes, chance: random.Random) -> bytes:
    """Encrypts a column, with or without the footer, or only claims that the footer is encrypted.

    The keys are random, but every choice comes from `chance`.
    """
    table = _table(data) if chance.random() < 0.5 else None
    if table is not None:
        leaves = pq.ParquetFile(io.BytesIO(_parquet(table, data))).schema
        column = leaves.column(chance.randrange(len(leaves))).path
        return encrypted(table, column, footer=chance.random() < 0.2)
    if chance.random() < 0.5:
        return b"PARE" + data[4:-4] + b"PARE"
    return data[:-4] + b"PARE"


def _table(data: bytes) -> pa.Table | None:
    try:
        return pq.read_table(io.BytesIO(data))
    except Exception:
        return None


def _parquet(table: pa.Table, otherwise: bytes) -> bytes:
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink)
    except Exception:
        return otherwise[: len(otherwise) // 2]
    return sink.getvalue()


def _edited(data: bytes, chance: random.Random, change: Callable[[Any], None]) -> bytes:
    """Changes one line of JSON, sometimes within a nested text."""
    found = data.split(b"\n")
    at = chance.choice([n for n, line in enumerate(found) if line.strip()] or [0])
    try:
        document = json.loads(found[at])
    except (ValueError, RecursionError):
        return bit_flips(data, chance)
    inner = _texts_with_json(document) if chance.random() < 0.35 else []
    if inner:
        holder, key = chance.choice(inner)
        within = json.loads(holder[key])
        change([within])
        holder[key] = json.dumps(within)
    else:
        change([document])
    found[at] = json.dumps(document, separators=(",", ":")).encode()
    return b"\n".join(found)


def _texts_with_json(value: Any) -> list[tuple[Any, Any]]:
    return [
        (holder, key)
        for holder, key in _places(value)
        if isinstance(holder[key], str) and holder[key][:1] in ("{", "[") and _is_json(holder[key])
    ]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _place(document: Any, chance: random.Random) -> tuple[Any, Any] | None:
    found = _places(document)
    return chance.choice(found) if found else None


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if not isinstance(holder, dict | list):
            continue
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            waiting.append(holder[key])
    return found


def _other(value: Any, chance: random.Random) -> Any:
    """Another value, most often of the same type."""
    if isinstance(value, bool) or value is None or chance.random() < 0.3:
        return chance.choice((*TEXTS, *NUMBERS, None, True, False, [], {}, [None], {"a": None}))
    if isinstance(value, int | float):
        return chance.choice(NUMBERS)
    if isinstance(value, str):
        return chance.choice((*TEXTS, value + "x", value[:-1], value.upper(), value * 2))
    return chance.choice((None, [], {}, "text", 5, [value], {"a": value}))
