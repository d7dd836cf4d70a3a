"""Installs the models of the catalogs' own clients, once, into an environment in `.tools/`.

None of these clients fits beside the packages of this project, or is needed by it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_PACKAGES = (
    "unitycatalog-client==0.7.0",
    "pylakekeeper==0.4.0",
    "dataclasses-json",
    "fsspec",
    "readerwriterlock",
    "cachetools",
    "requests",
    "google-auth",
    "protobuf",
)
_WITHOUT_THEIRS = ("apache-gravitino==1.3.1", "apache-polaris==1.8.0", "databricks-sdk==0.162.0")
"""Packages whose ranges contradict the others, though their models need nothing but these."""
FOLDER = Path(__file__).parents[3] / ".tools" / "catalog-models-1"


class ModelsUnavailable(Exception):
    """The models cannot be installed on this machine; the message says why."""


def problems_of(answers: Iterable[tuple[str, dict[str, Any]]], folder: Path = FOLDER) -> list[str]:
    """Returns one line for each answer that does not fit its model."""
    python = folder / "bin" / "python"
    if not python.exists():
        _install(folder)
    script = Path(__file__).with_name("check_models.py")
    lines = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    done = subprocess.run(
        [python, script], input=lines, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.splitlines()


def _install(folder: Path) -> None:
    # Programs of an environment that moves no longer start, but its Python does.
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    python = fresh / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", fresh],
        [*pip, *_PACKAGES],
        [*pip, "--no-deps", *_WITHOUT_THEIRS],
    ]
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                said = (done.stderr.strip() or "pip failed").splitlines()[-1]
                raise ModelsUnavailable(f"the models cannot be installed: {said}")
        with suppress(OSError):
            fresh.rename(folder)
    except subprocess.TimeoutExpired:
        raise ModelsUnavailable("pip does not come to an end within 5 minutes") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
