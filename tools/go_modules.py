"""Folders of Go modules, from the module proxy that the machine's Go asks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path


class NoModule(Exception):
    """A module that cannot be had, and why."""


def folder_of(module: str) -> Path:
    """Downloads a module, named as `path@version`, and returns its folder. Raises NoModule."""
    if shutil.which("go") is None:
        raise NoModule("the program go")
    command = ("go", "mod", "download", "-json", module)
    # Outside of any module.
    found = subprocess.run(command, cwd="/", capture_output=True, text=True)
    if found.returncode != 0:
        raise NoModule(f"the Go module {module}: {json.loads(found.stdout or '{}').get('Error')}")
    return Path(json.loads(found.stdout)["Dir"])
