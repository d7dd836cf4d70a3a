"""Readers of Delta tables with a log replay and an engine of their own.

DuckDB's extension and the plugin of Polars use the Rust kernel of Delta, each in another version
and with its own readers of JSON and Parquet. They belong to the extra `readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

Files = set[tuple[str, int | None]]
"""The path of each live file, decoded, and its number of rows if the statistics state one."""


_UNKNOWN = 2**64 - 1


class DuckDb:
    """DuckDB with its extension `delta`, from a wheel, because it usually downloads extensions."""

    def __init__(self) -> None:
        import duckdb
        import duckdb_extension_delta

        [extension] = Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension")
        # Unsigned extensions are refused by default.
        config = {"autoinstall_known_extensions": "false", "threads": "1"}
        self._connection = duckdb.connect(config=config)
        self._connection.execute(f"LOAD '{extension}'")

    def files(self, table: Path) -> Files:
        """Returns the live files. Opens no data file."""
        found = self._connection.execute(
            f"SELECT data_file, cardinality FROM delta_list_files('{table}')"
        ).fetchall()
        return {
            (unquote(path).rpartition(f"{table.name}/")[2], None if rows == _UNKNOWN else rows)
            for path, rows in found
        }

    def rows(self, table: Path) -> pa.Table:
        """Returns the rows."""
        self._connection.execute(f"SELECT * FROM delta_scan('{table}')")
        return _arrow(self._connection)

    def execute(self, query: str) -> list[tuple[Any, ...]]:
        """Executes a statement; returns the rows."""
        return self._connection.execute(query).fetchall()

    def insert(self, table: str, rows: pa.Table) -> None:
        """Appends rows to an attached table."""
        self._connection.register("rows", rows)
        self._connection.execute(f"INSERT INTO {table} SELECT * FROM rows")

    def number(self, query: str) -> Any:
        """Returns the first value of a query."""
        [value, *_] = self._connection.execute(query).fetchone()
        return value

    def explained(self, query: str) -> str:
        """Returns the plan of a query with what its run counted, as text."""
        [(_, plan)] = self._connection.execute(f"EXPLAIN ANALYZE {query}").fetchall()
        return str(plan)

    def close(self) -> None:
        """Ends the database."""
        self._connection.close()


def polars_rows(table: Path) -> pa.Table:
    """Returns the rows as the plugin `polars_deltalake` reads them."""
    import polars_deltalake

    return polars_deltalake.read_delta(str(table)).to_arrow()


def _arrow(connection: Any) -> pa.Table:
    read: Callable[[], Any] = getattr(connection, "to_arrow_table", None) or connection.arrow
    found = read()
    return found.read_all() if isinstance(found, pa.RecordBatchReader) else found


@pytest.fixture(scope="session")
def duck() -> Iterator[DuckDb]:
    """DuckDB as a reader of Delta tables."""
    require("duckdb", "duckdb_extension_delta")
    database = DuckDb()
    yield database
    database.close()


def require(*packages: str) -> None:
    """Skips a test whose reader is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"NO OTHER READER: {missing[0]} is not installed; see the extra `readers`")
