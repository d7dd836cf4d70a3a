"""Jars by their Maven coordinates, downloaded once by the Ivy that PySpark brings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

_SPARK = importlib.util.find_spec("pyspark")
SPARK_JARS = Path(_SPARK.origin if _SPARK and _SPARK.origin else "pyspark").parent / "jars"


class JarUnavailable(Exception):
    """A jar cannot be downloaded; the message says why."""


def maven_jar(folder: Path, coordinates: str) -> Path:
    """Returns the jar of `group:artifact:version` in the folder, without its dependencies.

    Raises `JarUnavailable`, and `FileNotFoundError` if there is no Java.
    """
    group, artifact, version = coordinates.split(":")
    jar = folder / f"{artifact}-{version}.jar"
    if not jar.exists():
        ivy = next(SPARK_JARS.glob("ivy-*.jar"))
        done = subprocess.run(
            [
                *(java_command(), "-jar", str(ivy), "-notransitive", "-types", "jar"),
                *("-dependency", group, artifact, version, "-cache", str(folder / "cache")),
                *("-retrieve", str(folder / "[artifact]-[revision].[ext]")),
            ],
            capture_output=True,
            text=True,
        )
        if not jar.exists():
            causes = re.findall(r"(?:unresolved dependency|download failed)[^\n]*", done.stdout)
            raise JarUnavailable(f"{coordinates} cannot be fetched: {''.join(causes[:1])}")
    return jar


def java_command() -> str:
    """Returns the command of the Java that JAVA_HOME names, or of the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
