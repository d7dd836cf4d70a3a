"""Build the jar with the log store for Delta Spark: `--check` compares it with the one committed.

The compiler is Eclipse's, which runs on any Java and gives equal bytes for equal sources. It and
Delta's interface are downloaded from Maven; Hadoop's interface is that of the installed PySpark.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.servers.maven import SPARK_JARS, java_command, maven_jar  # noqa: E402

JARS = ROOT / ".tools" / "log-store"
FOLDER = ROOT / "plugin" / "delta_maintenance" / "submission" / "log_store"
COMPILER = "org.eclipse.jdt:ecj:3.40.0"
INTERFACE = "io.delta:delta-storage:4.4.0"


def main() -> None:
    """Write the jar, or say that the committed one differs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    jar = FOLDER / "delta-maintenance-log-store.jar"
    with tempfile.TemporaryDirectory() as scratch:
        built = build(Path(scratch))
        if not check:
            jar.write_bytes(built.read_bytes())
        elif not jar.exists() or jar.read_bytes() != built.read_bytes():
            sys.exit(f"{jar.relative_to(ROOT)} is not what its source gives: run make log-store")


def build(scratch: Path) -> Path:
    """Compile the source, and return the jar. Its bytes depend on nothing but the source."""
    libraries = [maven_jar(JARS, INTERFACE), *SPARK_JARS.glob("hadoop-client-api-*.jar")]
    classes = scratch / "classes"
    compiler = [java_command(), "-jar", str(maven_jar(JARS, COMPILER))]
    options = ["--release", "11", "-g:source,lines", "-classpath", ":".join(map(str, libraries))]
    subprocess.run([*compiler, *options, "-d", str(classes), str(FOLDER)], check=True)
    jar = scratch / "log-store.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            name = str(file.relative_to(classes))
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_STORED)
    return jar


if __name__ == "__main__":
    main()
