"""The tables of the oracle, each created on first use, and Delta Spark's answers about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.oracle.delta_spark_tables import RECIPES, copy
from tests.support.oracle.delta_views import View, spark_view
from tests.support.oracle.recordings import RecordedSpark

Answers = tuple[list[str], dict[str, set[str]]]
"""The rows of a table, and for each predicate the data files that cannot be skipped."""


@dataclass(slots=True)
class Bench:
    """The oracle with its tables, and its answers about them with their complete logs."""

    spark: RecordedSpark
    root: Path
    _views: dict[Path, list[View]] = field(default_factory=dict)
    _answers: dict[str, Answers] = field(default_factory=dict)

    def table(self, name: str) -> Path:
        """Returns the table of that name. Copy it before changing it."""
        path = self.root / name
        if not path.exists():
            self.spark.table(name, path)
        return path

    def v2_table(self, name: str) -> Path:
        """Returns a copy of the table with one more commit, which enables V2 checkpoints."""
        path = self.root / f"{name}-v2"
        if not path.exists():
            copy(self.table(name), path)
            self.spark.sql(
                f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')"
            )
        return path

    def view(self, path: Path, version: int | None = None) -> View:
        """Returns a version of one of these tables as Delta Spark reads it, by default the
        latest.
        """
        if path not in self._views:
            self._views[path] = [
                spark_view(number, actions) for number, actions in self.spark.replay(path)
            ]
        return self._views[path][-1 if version is None else version]

    def fresh_view(self, path: Path) -> View:
        """Returns the latest version of any table as Delta Spark reads it now."""
        return spark_view(self.spark.version(path), self.spark.state(path))

    def rows(self, name: str, path: Path) -> list[str]:
        """Returns the rows of a table, with their row IDs if it tracks them."""
        ids = ", _metadata.row_id, _metadata.row_commit_version" if RECIPES[name].row_ids else ""
        return self.spark.rows(f"SELECT *{ids} FROM delta.`{path}`")

    def ask(self, name: str, path: Path) -> Answers:
        """Returns the rows of a table, and the files that each predicate of its recipe selects."""
        filters = RECIPES[name].filters
        return self.rows(name, path), {each: self.spark.data_files(path, each) for each in filters}

    def answers(self, name: str) -> Answers:
        """Returns `ask` of the table of that name, computed once; every predicate skips
        some files.
        """
        if name not in self._answers:
            path = self.table(name)
            self._answers[name] = self.ask(name, path)
            files = self.view(path)["files"]
            for predicate, left in self._answers[name][1].items():
                assert len(left) < len(files), f"{predicate} skips nothing"
        return self._answers[name]
