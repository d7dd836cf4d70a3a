"""What stands between the writers of a race and S3: it loses answers, kills writers and waits.

Each writer has an access key of its own, by which the proxy tells who sends a request.
"""

from __future__ import annotations

import io
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.support.emulators.s3_server import Application, Environ, StartResponse
from tests.support.faults.s3_faults import (
    APPLIED_THEN_500,
    APPLIED_THEN_503,
    APPLIED_THEN_DROPPED,
    LOST_503,
    LOST_DROPPED,
    Fault,
)

COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")
FAULTS: Mapping[str, float] = {
    "put commit": 0.15,
    "complete commit": 0.5,
    "put": 0.02,
    "get": 0.01,
    "head": 0.01,
    "list": 0.02,
    "delete": 0.02,
    "parts": 0.05,
}
"""The share of the requests of each kind that fail."""
_LATE_SECONDS = 1.0
_HELD_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Request:
    """A request as the race sees it."""

    writer: str
    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The death of a process at one of its requests."""

    kind: str
    """The kind of the request, or `any`."""
    after: int
    """The number of such requests that it survives."""
    is_applied: bool
    """Whether the request takes effect all the same."""


@dataclass(slots=True, kw_only=True)
class RaceProxy:
    """Wraps the server of a race. Thread-safe."""

    dice: random.Random
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)
    holds: str = ""
    """Writers whose unconditional commits wait until another writer has created that version."""
    killers: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Kills the process of a writer."""
    injected: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    overwritten: list[str] = field(default_factory=list)
    """Paths of commits that were put although they existed."""
    _armed: dict[str, Kill] = field(default_factory=dict)
    _late: list[threading.Timer] = field(default_factory=list)
    _created: set[str] = field(default_factory=set)
    _change: threading.Condition = field(default_factory=threading.Condition)

    def arm(self, writer: str, kill: Kill) -> None:
        """Kills a writer at a request to come."""
        with self._change:
            self._armed[writer] = kill

    def disarm(self) -> None:
        """No more faults and kills; waits for requests that are late."""
        self.faults = {}
        with self._change:
            self._armed.clear()
            late = list(self._late)
        for timer in late:
            timer.join()

    def __call__(self, application: Application) -> Application:
        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            request = _describe(environ)
            handle = self._act_of(request)
            return handle(self._with_record(application, request), environ, start)

        return answer

    def _act_of(self, request: S3Request) -> Fault:
        """How the request is answered."""
        with self._change:
            kill = self._armed.get(request.writer)
            if kill is not None and kill.kind in ("any", request.kind) and kill.after:
                self._armed[request.writer] = replace(kill, after=kill.after - 1)
            elif kill is not None and kill.kind in ("any", request.kind):
                del self._armed[request.writer]
                self.kills[f"{_role(request.writer)} at {request.kind}"] += 1
                self.killers[request.writer]()
                return APPLIED_THEN_DROPPED if kill.is_applied else LOST_DROPPED
            if self.dice.random() >= self.faults.get(request.kind, 0.0):
                return _pass
            faults: list[Fault] = [LOST_503, LOST_DROPPED]
            # deltalake 1.6.6 takes its own commit for that of another writer if the answer is lost,
            # and commits the same files again.
            if not (request.writer.startswith("deltalake") and "commit" in request.kind):
                faults += [APPLIED_THEN_500, APPLIED_THEN_503, APPLIED_THEN_DROPPED]
                faults += [self._answer_late]
            self.injected[f"{_role(request.writer)}: {request.kind}"] += 1
            return self.dice.choice(faults)

    def is_armed(self, writer: str) -> bool:
        """Whether a kill of a writer is still to come."""
        return writer in self._armed

    def release(self, writer: str) -> bool:
        """Takes back the kill of a writer; returns whether it was still to come."""
        with self._change:
            return self._armed.pop(writer, None) is not None

    def _answer_late(
        self, application: Application, environ: Environ, start: StartResponse
    ) -> Iterable[bytes]:
        """The connection breaks, and the request takes effect later."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        later = {**environ, "wsgi.input": io.BytesIO(body)}
        seconds = self.dice.uniform(0, _LATE_SECONDS)
        timer = threading.Timer(seconds, lambda: list(application(later, lambda *_: None)))
        with self._change:
            self._late.append(timer)
        timer.start()
        return LOST_DROPPED(application, environ, start)

    def _with_record(self, application: Application, request: S3Request) -> Application:
        """The server, with a record of the commits that it creates."""
        if request.kind not in ("put commit", "complete commit"):
            return application

        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            conditional = "HTTP_IF_NONE_MATCH" in environ
            if not conditional and self.holds and request.writer.startswith(self.holds):
                with self._change:
                    self._change.wait_for(lambda: request.path in self._created, _HELD_SECONDS)

            def start_recorded(status: str, *headers: object) -> object:
                with self._change:
                    if status.startswith("2"):
                        if request.path in self._created:
                            self.overwritten.append(request.path)
                        self._created.add(request.path)
                        self._change.notify_all()
                return start(status, *headers)

            return application(environ, start_recorded)

        return answer


def _describe(environ: Environ) -> S3Request:
    credential = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    method, path, query = (environ[k] for k in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING"))
    if method == "POST" and "delete" in query:
        kind = "delete"
    elif method == "POST" and "uploadId" in query:
        kind = "complete commit" if COMMIT.search(path) else "parts"
    elif query and method in ("POST", "PUT") and "x-id" not in query:
        kind = "parts"
    elif method == "PUT":
        kind = "put commit" if COMMIT.search(path) else "put"
    elif method == "GET" and "list-type" in query:
        kind = "list"
    else:
        kind = method.lower()
    return S3Request(writer=credential[1] if credential else "", kind=kind, path=path)


def _role(writer: str) -> str:
    return writer.partition("-")[0]


def _pass(application: Application, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return application(environ, start)
