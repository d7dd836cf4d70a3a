"""Resolve the extras `dev` and `readers`, and print constraints.txt with exact versions.

    make constraints

pip resolves for the Python that runs this, in a throwaway environment and without installing
anything, so what happens to be installed has no say. Run it with the oldest Python supported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "delta-maintenance"

# Beside the project's own needs, what tools/make_venv.py builds it with.
REQUIREMENTS = [f"{ROOT}[dev,readers]", "pip", "setuptools"]

HEADER = """\
# Versions of the extras dev and readers that `make test` and `make demo` use, on Python {python}.
# Made by `make constraints`; don't edit, widen or narrow the ranges in pyproject.toml instead.
"""


def main() -> int:
    """Print the file, or pip's complaint."""
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(Path(scratch, "venv"), with_pip=True)
        python = str(Path(scratch, "venv", "bin", "python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
        report = Path(scratch, "report.json")
        resolve = ["install", "--dry-run", "--ignore-installed", "--prefer-binary"]
        outcome = subprocess.run([*pip, *resolve, "--report", str(report), *REQUIREMENTS])
        if outcome.returncode:
            return outcome.returncode
        packages = [found["metadata"] for found in json.loads(report.read_text())["install"]]
    versions = {canonical(package["name"]): package["version"] for package in packages}
    del versions[PROJECT]
    print(HEADER.format(python=".".join(map(str, sys.version_info[:2]))), end="")
    for name, version in sorted(versions.items()):
        print(f"{name}=={version}")
    return 0


def canonical(name: str) -> str:
    """The one spelling of a distribution's name that every index agrees on."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
