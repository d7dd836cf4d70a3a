"""Start docker-compose.yaml, on machines without Docker too, and end it.

    .venv/bin/python tools/containers.py up
    .venv/bin/python tools/containers.py compose ps      # any command of `docker compose`
    .venv/bin/python tools/containers.py down

A Docker that runs on the machine does the work. Where there is none, tools/container_engine.py
starts one, and images of Docker Hub are replaced by stand-ins (tools/stand_in_images.py); the pages
then have to be opened from the engine's network: `nsenter --net=FILE chromium http://localhost:8080`
with the FILE that `up` prints.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

import container_engine
import stand_in_images
from debian import ROOT, Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The services of the compose file in an engine."""

    own: bool
    """Whether the engine is that of tools/container_engine.py."""
    project: str
    """The name of the project, which containers and volumes have."""

    @property
    def network(self) -> Path:
        """The network namespace in which the ports are published."""
        return container_engine.network() if self.own else Path("/proc/self/ns/net")

    def compose(self, *arguments: str) -> tuple[str, ...]:
        """The command that runs `docker compose` with these arguments."""
        project = (f"--project-directory={ROOT}", f"--project-name={self.project}")
        command = ("compose", *project, *arguments)
        return container_engine.command(*command) if self.own else ("docker", *command)

    def up(self) -> None:
        """What the head of the compose file says."""
        if self.own:
            container_engine.start()
            for image in images():
                with stage(f"the stand-in for {image}"):
                    stand_in_images.make(image)
        with stage("docker compose build"):
            subprocess.run(self.compose("build", "--quiet"), check=True)
        with stage("docker compose up"):
            subprocess.run(self.compose("up", "--wait"), check=True)

    def down(self, *arguments: str) -> None:
        """Ends the services, and then an own engine. With `--volumes`, the volumes are removed."""
        if self.own and container_engine.first_process() is None:
            return
        subprocess.run(self.compose("down", *arguments), check=True)
        if self.own:
            container_engine.stop()


def available(*, project: str = "delta-maintenance") -> Stack:
    """The stack of this machine. Raises Missing for what the machine lacks."""
    try:
        version = subprocess.run(("docker", "compose", "version"), capture_output=True)
        running = subprocess.run(("docker", "info"), capture_output=True)
        if version.returncode == running.returncode == 0:
            return Stack(own=False, project=project)
    except FileNotFoundError:
        pass
    container_engine.check()
    return Stack(own=True, project=project)


def images() -> list[str]:
    """The images of Docker Hub that the Dockerfile and the compose file name."""
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    found = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    found += [each["image"] for each in services.values() if "build" not in each]
    return sorted(set(found))


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Prints how long something took."""
    started = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    try:
        stack = available()
        if arguments == ["up"]:
            stack.up()
            print(f"network: {stack.network}")
        elif arguments == ["down"]:
            stack.down()
        elif arguments[:1] == ["compose"]:
            return subprocess.run(stack.compose(*arguments[1:])).returncode
        else:
            sys.exit("say up, down, or compose and its arguments")
    except Missing as missing:
        sys.exit(f"the containers need {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
