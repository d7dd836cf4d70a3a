"""The `spark-submit` command of a job, and the environment of its driver."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.submission.job_spec import APPLICATION
from delta_maintenance.submission.versions import require_spark, spark_version


def submit_command(
    spec: str,
    report: str,
    *,
    spark_submit: str = "spark-submit",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    archives: Sequence[str] = (),
    application: str | os.PathLike[str] = APPLICATION,
) -> list[str]:
    """Returns the words of a command that submits a job.

    `spec` is the value that `JobSpec.write` returned, or the JSON if it contains no credentials.
    `report` is the location of the report: a path on the driver's machine, or an address in the
    table's store.
    """
    return [
        spark_submit,
        *(["--master", master] if master else []),
        *(word for name, value in (conf or {}).items() for word in ("--conf", f"{name}={value}")),
        *(["--py-files", ",".join(py_files)] if py_files else []),
        *(["--archives", ",".join(archives)] if archives else []),
        os.fspath(application),
        *("--spec", spec, "--report", report),
    ]


def connect_command(spec: str, report: str) -> list[str]:
    """Returns the words of a command that runs a job in this Python, through Spark Connect.

    The environment contains the address of the server and its token: `driver_environment`.
    """
    return [sys.executable, os.fspath(APPLICATION), "--spec", spec, "--report", report]


def find_spark_home() -> Path:
    """Returns SPARK_HOME, or else the installed pyspark. Raises `InvalidRequestError`
    without both, and for a version that is too old.
    """
    named = os.environ.get("SPARK_HOME")
    if named:
        home = Path(named)
        problem = f"SPARK_HOME is {named}, which does not contain bin/spark-submit"
    else:
        # Located without importing it, which would take a second.
        package = importlib.util.find_spec("pyspark")
        home = Path(package.origin).parent if package and package.origin else Path()
        problem = "pyspark is not installed here and SPARK_HOME is not set"
    if not (home / "bin" / "spark-submit").is_file():
        raise InvalidRequestError(
            problem, remedy="install delta-maintenance[spark], or use --engine local"
        )
    if version := spark_version(home):
        require_spark(version, found=os.fspath(home))
    return home


def driver_environment(
    environment: Mapping[str, str],
    *,
    secrets: Mapping[str, str | None] | None = None,
    remote: str | None = None,
) -> dict[str, str]:
    """Returns the environment of a driver on this machine, derived from that of this process.

    `secrets` are variables to set, or to remove if they are None; `remote` is the address of a
    Spark Connect server.
    """
    started = {
        "PYSPARK_PYTHON": sys.executable,
        **environment,
        # The driver needs the packages of this Python, including this library.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    # Otherwise a submitted driver would become a client of that server.
    started.pop("SPARK_REMOTE", None)
    if remote is not None:
        started["SPARK_REMOTE"] = remote
    for name, value in (secrets or {}).items():
        if value is None:
            started.pop(name, None)
        else:
            started[name] = value
    return started


PACKAGE = Path(__file__).resolve().parent.parent
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_library(folder: Path) -> str:
    """Writes `library_zip` into a folder, and returns the path."""
    file = folder / "delta_maintenance.zip"
    file.write_bytes(library_zip())
    return os.fspath(file)


def library_zip() -> bytes:
    """A ZIP file of the package for `--py-files`: the same bytes for the same code.

    A wheel does not work: Spark adds `.zip` and `.egg` files to the path of its workers, and
    ignores a `.whl` file.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.suffix in (".py", ".json") and file.is_file():
                name = file.relative_to(PACKAGE.parent).as_posix()
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
    return packed.getvalue()
