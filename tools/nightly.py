"""Run what `make test` leaves out: every random case, the fuzzer, the other supported versions.

    .venv/bin/python tools/nightly.py [--jobs N] [PART ...]

Each part is one environment and the tests that depend on it, or `make fuzz`; without arguments, all
of them run, one after the other. With `--jobs 2`, two run at a time, and the output of each is in
build/nightly/PART.log. docs/compatibility.md lists the versions. An environment is made once in
build/nightly, and again after `make clean`. The last lines give the result of each part; the exit
status is 1 if one failed, or if one was named and could not run.

uv, installed in an environment of its own, makes the others: pip did not resolve Airflow 3.1 with
its providers within 25 minutes, and uv takes one minute.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO

import compatibility
import debian
import make_venv
import pythons
from java_home import OWN_HOME, machine_java, packaged_java

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "build" / "nightly"
TEST_PACKAGES = (
    "asyncssh",
    "azure-storage-blob",
    "deltalake==1.6.6",
    "duckdb==1.5.5",
    "duckdb-extension-delta==1.5.5",
    "hypothesis",
    "moto[server]",
    # The wheel is built by it.
    "pip",
    "polars",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)
PASSED, FAILED, LEFT_OUT = "passed", "FAILED", "left out"
TREE_PACKAGES = ("ca-certificates", "git", "procps", "python3-venv", "tzdata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One environment, and what is run in it."""

    tests: tuple[str, ...] = ()
    """Arguments of pytest."""
    also: tuple[str, ...] = ()
    """Arguments of a second run of pytest."""
    command: tuple[str, ...] = ()
    """A command that is run instead of pytest."""
    overlay: tuple[str, ...] = ()
    """Packages that hide those of `.venv`."""
    jars: tuple[str, ...] = ()
    """Maven coordinates of the jars that replace those of the overlay's PySpark, which come for one
    version of Scala. Where Maven is missing, the part is left out."""
    packages: tuple[str, ...] = ()
    """Packages of an environment of its own, beside the project and what its tests need."""
    as_of: str = ""
    """A day. The dependencies of the first of the packages are the newest of that day, as if by the
    constraints file of an Airflow release: each release breaks with later ones of FastAPI,
    Starlette or SQLAlchemy."""
    extras: str = ""
    """The extras of the project in that environment."""
    python: str = ""
    """The version of its Python, by default the one of `.venv`. Where it cannot be had, the part is
    left out."""
    tree: str = ""
    """A suite of Debian: all runs in a tree of it, with its Python. Where debootstrap is missing,
    the part is left out."""
    resolution: str = "highest"
    """Of uv: `lowest-direct` for the oldest versions that pyproject.toml allows."""
    variables: dict[str, str] = field(default_factory=dict)


# Combinations of other packages with older versions give warnings about each other, which
# `make test` would turn into errors.
LENIENT = ("-W", "default")
IN_PARALLEL = ("--dist", "loadfile", "-n", "2")
AIRFLOW_TESTS = (*("tests/airflow", "-m", "not browser"), *IN_PARALLEL, *LENIENT)
ELSEWHERE = ("--ignore=tests/stack", "--ignore=tests/documentation", "--ignore=tests/packaging")
# The tests that start nothing, those of Airflow, and then a newcomer with the wheel.
PYTHON_TESTS = (
    *("-m", "(not slow or airflow) and not spark and not browser"),
    *ELSEWHERE,
    *IN_PARALLEL,
    *LENIENT,
)
PYTHON_EXTRAS = "dev,readers"
WHEEL = ("-s", "tests/packaging/nightly_newcomer.py::test_the_command_line_in_three_minutes")
# With PySpark or an orchestrator.
OTHERS = (
    *("airflow", "dagster", "metrics", "oracle", "spark", "test_table_names.py"),
    *("operations/test_memory.py", "submission/test_job_arguments.py"),
)
LIBRARY_TESTS = (*ELSEWHERE, *(f"--ignore=tests/{each}" for each in OTHERS), *IN_PARALLEL, *LENIENT)
# The tests that play more with DELTA_MAINTENANCE_PLAY=all: the lists of cases, all pairs of tables
# and checkpoints for Delta Spark, and the properties, which start nothing.
CASES_TESTS = ("-m", "oracle or (cases and not spark) or not slow")
# Airflow reaches PostgreSQL, of the packages of the machine, by two drivers.
POSTGRESQL_DRIVERS = ("psycopg2-binary==2.9.13", "asyncpg==0.32.0")
LOG_STORE_TESTS = (
    *("tests/oracle/log_store/test_log_store.py", "tests/oracle/log_store/nightly_own_hadoop.py"),
    # The jar is built for all versions, with the newest Hadoop.
    *("-k", "not the_jar_is_what_the_source_gives"),
)
KERBEROS_TESTS = ("tests/storage/hdfs/test_kerberos.py", "tests/storage/hdfs/nightly_kerberos.py")


def spark(version: str, delta: str = "", *, jars: tuple[str, ...] = ()) -> Part:
    """The Spark jobs on a version, and between writes of the Delta Spark of its time, with the log
    store of the package on S3.
    """
    writes = ("tests/oracle/versions/nightly_second_writer.py", *LOG_STORE_TESTS)
    return Part(
        tests=("tests/spark", *(writes if delta else ()), *IN_PARALLEL, *LENIENT),
        overlay=(f"pyspark=={version}",),
        jars=jars,
        variables={"DELTA_MAINTENANCE_DELTA_SPARK": delta} if delta else {},
    )


PARTS = {
    "cases": Part(
        tests=CASES_TESTS,
        variables={
            "DELTA_MAINTENANCE_PLAY": "all",
            "DELTA_MAINTENANCE_SEEDS": "300",
            "DELTA_MAINTENANCE_KILLS": "50",
            "DELTA_MAINTENANCE_IO_ERRORS": "20",
        },
    ),
    "fuzz": Part(command=("make", "fuzz")),
    "many-tables": Part(
        tests=("-s", "tests/stack/test_many_tables.py"),
        overlay=POSTGRESQL_DRIVERS,
        variables={"DELTA_MAINTENANCE_TABLES": "2000"},
    ),
    # A newcomer's walks, from the wheel: the only part that installs packages by pip.
    "newcomer": Part(tests=("-s", "tests/packaging/nightly_newcomer.py")),
    # Needs Docker, or what tools/container_engine.py needs to start it.
    "containers": Part(tests=("-s", "tests/packaging/nightly_containers.py")),
    "release": Part(tests=("-s", "tests/packaging/nightly_release.py")),
    "approvals-page": Part(tests=("tests/stack/nightly_approvals_page.py",)),
    "schedulers": Part(
        tests=("-s", "tests/stack/nightly_schedulers.py"), overlay=POSTGRESQL_DRIVERS
    ),
    "triggerer": Part(tests=("-s", "tests/stack/nightly_triggerer.py")),
    "dagster-many-tables": Part(
        tests=("-s", "tests/dagster/test_cost.py"), variables={"DELTA_MAINTENANCE_TABLES": "500"}
    ),
    # Two drivers, and a kill every six seconds.
    "log-store": Part(
        tests=("-s", "tests/oracle/log_store/test_races.py"),
        variables={"DELTA_MAINTENANCE_STORE_RACE_SECONDS": "600"},
    ),
    # Compiled for the Kerberos libraries, so it needs their headers and a compiler.
    "kerberos": Part(tests=KERBEROS_TESTS, overlay=("requests-gssapi==1.4.0",)),
    "spark-3.5": spark("3.5.9", "io.delta:delta-spark_2.12:3.3.2"),
    "spark-3.5-scala-2.13": spark(
        "3.5.9",
        "io.delta:delta-spark_2.13:3.3.2",
        # MLlib has the second one, which the tests with HDFS need, among its dependencies.
        jars=("org.apache.spark:spark-sql_2.13:3.5.9", "org.glassfish.jaxb:jaxb-runtime:2.3.2"),
    ),
    "spark-4.0": spark("4.0.5", "io.delta:delta-spark_2.13:4.0.1"),
    "spark-4.1": spark("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"),
    "spark-4.2": spark("4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    # No Delta Spark has been released for it.
    "spark-4.3": spark("4.3.0"),
    "airflow-3.1": Part(
        tests=AIRFLOW_TESTS,
        packages=("apache-airflow==3.1.8", "apache-airflow-providers-standard", "pyspark==4.2.0"),
        as_of="2026-04-15",
        extras="airflow-spark,s3,azure,gcs",
    ),
    "airflow-3.2": Part(
        tests=AIRFLOW_TESTS,
        packages=("apache-airflow==3.2.2", "apache-airflow-providers-standard", "pyspark==4.2.0"),
        as_of="2026-06-15",
        extras="airflow-spark,s3,azure,gcs",
    ),
    # The operators of Airflow for the platforms, whose providers `.venv` does not have.
    "platforms": Part(
        tests=("tests/airflow/spark/test_platforms.py", *LENIENT),
        packages=("apache-airflow==3.3.2",),
        extras="platforms,s3",
    ),
    "dagster-1.12": Part(
        tests=("tests/dagster", *LENIENT),
        packages=(
            *("dagster==1.12.22", "dagster-webserver==1.12.22"),
            *("opentelemetry-sdk", "pandas", "playwright", "pyspark==4.2.0"),
        ),
        extras="dagster,otel,s3,azure,gcs",
    ),
    "python-3.12": Part(tests=PYTHON_TESTS, also=WHEEL, python="3.12", extras=PYTHON_EXTRAS),
    "python-3.13": Part(tests=PYTHON_TESTS, also=WHEEL, python="3.13", extras=PYTHON_EXTRAS),
    "python-3.14": Part(tests=PYTHON_TESTS, also=WHEEL, python="3.14", extras=PYTHON_EXTRAS),
    # Debian 13, as its users have it.
    "debian-13": Part(tests=PYTHON_TESTS, also=WHEEL, tree="trixie", extras=PYTHON_EXTRAS),
    # The oldest versions of what the library itself needs, without an orchestrator.
    "lowest": Part(
        tests=("-m", "not slow", *LIBRARY_TESTS),
        extras="s3,azure,gcs,catalogs",
        resolution="lowest-direct",
    ),
}


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every part has passed that was named, or that could run."""
    parser = argparse.ArgumentParser(prog="nightly.py", description="Run parts, or all of them.")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parts at a time")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.parts) - PARTS.keys()):
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    began = time.monotonic()
    # Before the parts, which all use it.
    uv()
    results: dict[str, str] = {}
    with ThreadPoolExecutor(asked.jobs) as pool:
        names = asked.parts or list(PARTS)
        runs = {pool.submit(run, name, PARTS[name], logged=asked.jobs > 1): name for name in names}
        for ended in as_completed(runs):
            name, (result, seconds) = runs[ended], ended.result()
            if result == PASSED:
                problem = compatibility.record(name, day=date.today(), seconds=seconds)
                result += f"; {problem}" if problem else ""
            results[name] = f"{seconds:6.0f} s  {result}"
            print(f"{name:20} {results[name]}", flush=True)
    print("\nall parts:")
    for name in names:
        print(f"{name:20} {results[name]}")
    print(f"{'together':20} {time.monotonic() - began:6.0f} s")
    bad = (FAILED, LEFT_OUT) if asked.parts else (FAILED,)
    return int(any(word in result for result in results.values() for word in bad))


def run(name: str, part: Part, *, logged: bool) -> tuple[str, float]:
    """Runs a part, and returns its result in one line, and its duration in seconds."""
    started = time.monotonic()
    if (lacking := missing(part)) is not None:
        result = f"{LEFT_OUT}: {lacking}"
    else:
        try:
            with output(name, logged=logged) as log:
                result = result_of(name, part, log)
        except subprocess.CalledProcessError as error:
            result = f"{FAILED} to make its environment: {' '.join(error.cmd)[-200:]}"
    return result, time.monotonic() - started


@contextmanager
def output(name: str, *, logged: bool) -> Iterator[IO[bytes] | None]:
    """Where the tests of a part write; None for the terminal."""
    if not logged:
        yield None
        return
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{name}.log").open("wb") as log:
        yield log


def result_of(name: str, part: Part, log: IO[bytes] | None) -> str:
    """Makes the environment of a part and runs its tests."""
    python, variables = prepared(name, part)
    home = machine_java() or packaged_java(OWN_HOME)
    if home is not None:
        variables["JAVA_HOME"] = str(home)
    pytest = (str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q")
    commands = [part.command or (*pytest, *part.tests)]
    commands += [(*pytest, *part.also)] if part.also else []
    environment = {**os.environ, **variables}
    ended = [
        subprocess.run(
            placed(part, *each), cwd=ROOT, env=environment, stdout=log, stderr=log
        ).returncode
        for each in commands
    ]
    status = next(filter(None, ended), 0)
    return f"{FAILED} with status {status}" if status else PASSED


def missing(part: Part) -> str | None:
    """What a part needs and this machine lacks."""
    if part.python and python_of(part) is None:
        return f"no Python {part.python} here, and none to download"
    if part.jars and shutil.which("mvn") is None:
        return "no Maven (mvn) here, which fetches its jars"
    if part.overlay == POSTGRESQL_DRIVERS and not (
        shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    ):
        return "no PostgreSQL here (initdb)"
    if part.tree:
        try:
            debian.check()
        except debian.Missing as lacking:
            return f"a tree of Debian needs {lacking}"
    return None


def prepared(name: str, part: Part) -> tuple[Path, dict[str, str]]:
    """The Python of a part and its variables; makes the environment where it is not there yet."""
    own = make_venv.VENV / "bin" / "python"
    variables = dict(part.variables)
    place = ENVIRONMENTS / name
    done = place / "done"
    asked = [part.extras, part.as_of, part.tree, *part.overlay, *part.jars, *part.packages]
    if part.extras:
        project_file = (ROOT / "pyproject.toml").read_bytes()
        asked += [
            *TEST_PACKAGES,
            part.python,
            part.resolution,
            hashlib.sha256(project_file).hexdigest(),
        ]
    requirements = "\n".join(asked)
    made = done.is_file() and done.read_text() == requirements
    if not made:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    if part.overlay:
        if not made:
            install("--python", str(own), "--target", str(place), *part.overlay, part=part)
            if part.jars:
                replace_jars(place, part.jars)
        variables["PYTHONPATH"] = str(place)
    elif part.extras:
        if not made:
            base = str(python_of(part) or own)
            if part.tree:
                debian.debootstrap(part.tree, tree_of(part), *TREE_PACKAGES)
                base = "/usr/bin/python3"
            venv = (uv(), "venv", "--quiet", "--clear", "--python", base, str(place))
            make_venv.run(*placed(part, *venv))
            project = f"{ROOT}[{part.extras}]"
            into: tuple[str, ...] = ("--python", str(place))
            if part.as_of:
                into += ("--constraint", str(constraints(place, part)))
            chosen = ("--resolution", part.resolution, "--editable", project, *part.packages)
            install(*into, *chosen, part=part)
            # Later, so that the oldest versions are those of the project alone, and stay.
            install(*into, *kept(place, part), *TEST_PACKAGES, part=part)
        own = place / "bin" / "python"
    done.write_text(requirements)
    return own, variables


def replace_jars(place: Path, coordinates: tuple[str, ...]) -> None:
    """Replaces the jars of the overlay's PySpark by artifacts with all that they depend on."""
    jars = place / "pyspark" / "jars"
    shutil.rmtree(jars)
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in (each.split(":") for each in coordinates)
    )
    project = place / "pom.xml"
    project.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>nightly</groupId>"
        "<artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    copy = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}")
    make_venv.run("mvn", "--batch-mode", "--quiet", "--file", str(project), *copy)


def constraints(place: Path, part: Part) -> Path:
    """Writes the versions of the dependencies of the first package, as of the day of the part."""
    wanted, found = place / "wanted.txt", place / "constraints.txt"
    wanted.write_text(part.packages[0])
    python = ("--python", str(place / "bin" / "python"))
    command = ("pip", "compile", "--quiet", *python, "--exclude-newer", part.as_of, str(wanted))
    make_venv.run(uv(), *command, "--output-file", str(found))
    return found


def kept(place: Path, part: Part) -> tuple[str, ...]:
    """Arguments by which an installation changes none of the oldest versions."""
    if part.resolution == "highest":
        return ()
    freeze = (uv(), "pip", "freeze", "--exclude-editable", "--python", str(place))
    versions = place / "kept.txt"
    versions.write_bytes(subprocess.run(freeze, check=True, capture_output=True).stdout)
    return ("--constraint", str(versions))


def python_of(part: Part) -> Path | None:
    """The Python of a part; None if it asks for none, or if it cannot be had."""
    if not part.python:
        return None
    return pythons.find(part.python, uv=uv(), folder=ENVIRONMENTS / "pythons")


def install(*arguments: str, part: Part) -> None:
    """`uv pip install`, with everything that it resolves taken from the package index."""
    make_venv.run(*placed(part, uv(), "pip", "install", "--quiet", *arguments))


def placed(part: Part, *command: str) -> tuple[str, ...]:
    """The command, in the tree of a part that has one."""
    if not part.tree:
        return command
    # On the file system of the environment, so that uv links files instead of copying them.
    cache = f"UV_CACHE_DIR={ENVIRONMENTS / 'trees' / 'cache'}"
    return debian.inside(tree_of(part), "env", cache, *command)


def tree_of(part: Part) -> Path:
    """The tree of a part."""
    return ENVIRONMENTS / "trees" / part.tree


def uv() -> str:
    """The path of uv; installs it the first time."""
    place = ENVIRONMENTS / "uv"
    program = place / "bin" / "uv"
    if not program.is_file():
        pip = make_venv.create(place)
        make_venv.run(*pip, "install", "--quiet", "--disable-pip-version-check", "uv")
    return str(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
