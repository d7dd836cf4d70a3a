"""The table of versions in docs/compatibility.md, and the record of the parts that passed.

    .venv/bin/python tools/compatibility.py [FOLDER]

writes the table anew, with the records of other machines: that of PART from each
FOLDER/PART/compatibility.json. `make nightly` calls it after each part that passed, with the day,
the commit and the duration. A part that has failed since keeps its record, which says when it last
passed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
RECORD = ROOT / "docs" / "compatibility.json"
_TABLE = re.compile(r"(?<=<!-- versions -->\n).*?(?=<!-- end of versions -->)", re.DOTALL)
CHANGES = "every change"


@dataclass(frozen=True, slots=True)
class Row:
    """A version that users can choose."""

    software: str
    version: str
    part: str | None
    """The part of `make nightly` that tests it; None if `make test` does, on every change."""
    note: str = ""


_YARN = "An application on YARN or Kubernetes is not followed: that needs Airflow 3.3."
ROWS = (
    Row("Python", "3.11", None),
    Row("Python", "3.12", "python-3.12"),
    Row("Python", "3.13", "python-3.13"),
    Row("Python", "3.13 of Debian 13", "debian-13"),
    Row("Python", "3.14", "python-3.14"),
    Row("Airflow", "3.3 (3.3.2)", None),
    Row("Airflow", "3.2 (3.2.2)", "airflow-3.2", _YARN),
    Row("Airflow", "3.1 (3.1.8)", "airflow-3.1", _YARN),
    Row("Spark", "4.3 (4.3.0)", "spark-4.3"),
    Row("Spark", "4.2 (4.2.0)", None, "With Delta Spark 4.4.0 as the reference."),
    Row("Spark", "4.2 (4.2.1)", "spark-4.2"),
    Row("Spark", "4.1 (4.1.4)", "spark-4.1"),
    Row("Spark", "4.0 (4.0.5)", "spark-4.0"),
    Row("Spark", "3.5 (3.5.9), Scala 2.12", "spark-3.5"),
    Row("Spark", "3.5 (3.5.9), Scala 2.13", "spark-3.5-scala-2.13"),
    Row("Java", "17", None, "Where the machine has no other."),
    Row("Java", "21", None, "Where the machine has no Java."),
    Row("Dagster", "1.13 (1.13.26)", None),
    Row("Dagster", "1.12 (1.12.22)", "dagster-1.12"),
    Row("PyArrow, fsspec, pydantic", "the newest", None),
    Row("PyArrow, fsspec, pydantic", "the oldest of `pyproject.toml`", "lowest"),
    Row("deltalake", "1.6 (1.6.6)", None, "As another writer in tests."),
)


def record(part: str, *, day: date, seconds: float) -> str | None:
    """Records that a part has passed, and writes the page; returns why it was not recorded."""
    # All but what earlier parts of the same run have recorded.
    if _git("status", "--porcelain", "--untracked-files=no", ".", ":!docs/compatibility.*"):
        return "not recorded: the checkout has changes that are not committed"
    records = _records()
    records[part] = {
        "passed": day.isoformat(),
        "commit": _git("rev-parse", "--short=8", "HEAD"),
        "seconds": round(seconds),
    }
    RECORD.write_text(_text(records))
    write()
    return None


def collect(folder: Path) -> None:
    """Takes over the record of each part from the file of the machine that has run it."""
    records = _records()
    for file in sorted(folder.glob(f"*/{RECORD.name}")):
        part = file.parent.name
        found = json.loads(file.read_text()).get(part)
        # A part that has failed there leaves an older record.
        if found is not None and found["passed"] >= records.get(part, {}).get("passed", ""):
            records[part] = found
    RECORD.write_text(_text(records))


def write() -> None:
    """Writes the table into the page."""
    PAGE.write_text(_TABLE.sub(lambda _: table(_records()), PAGE.read_text()))


def table(records: dict[str, dict[str, str | int]]) -> str:
    """Returns the table of the page in Markdown."""
    lines = ["| | version | command | last passed |", "|---|---|---|---|"]
    before = ""
    for row in ROWS:
        name = "" if row.software == before else row.software
        before = row.software
        found = records.get(row.part or "")
        if row.part is None:
            command, passed = "`make test`", CHANGES
        else:
            command = f"`make nightly NIGHTLY={row.part}`"
            passed = (
                "never"
                if found is None
                else f"{found['passed']}, commit {found['commit']}, in {found['seconds']} s"
            )
        told = f"{passed}. {row.note}" if row.note else passed
        lines.append(f"| {name} | {row.version} | {command} | {told} |")
    return "\n".join(lines) + "\n"


def _text(records: dict[str, dict[str, str | int]]) -> str:
    return json.dumps(dict(sorted(records.items())), indent=2) + "\n"


def _records() -> dict[str, dict[str, str | int]]:
    found: dict[str, dict[str, str | int]] = json.loads(RECORD.read_text())
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        collect(Path(folder))
    write()
