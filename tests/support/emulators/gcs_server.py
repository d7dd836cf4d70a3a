"""The parts of Google Cloud Storage's JSON API that a store needs, on the loopback interface."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from delta_maintenance import clock
from tests.support.servers.loopback import Reply, Request, serve


@dataclass(slots=True, kw_only=True)
class GCSServer:
    """A running server. It requires no credentials, and gives `token` to every client that signs
    in.
    """

    url: str = ""
    requests: list[str] = field(default_factory=list)
    """One line per request so far, `METHOD TARGET`; clear it to start counting again."""
    tokens: list[str] = field(default_factory=list)
    """The credentials of each request so far."""
    token: str = "token"
    honours_conditions: bool = True
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The resources of buckets: versioning, lifecycle and soft-delete policy."""
    noncurrent: list[tuple[str, str, _Object]] = field(default_factory=list)
    """Objects that were replaced or deleted while versioning was on, by bucket and name."""
    soft_deleted: list[tuple[str, str, _Object]] = field(default_factory=list)
    """Objects that were deleted while there was a soft-delete policy."""
    knows_soft_delete: bool = True
    hides_settings: bool = False
    """Whether nobody may read the resources of buckets."""
    location_type: str = "region"
    guard: Callable[[Request], bool] | None = None
    """Says which requests have the right credentials; all by default."""
    denied: set[str] = field(default_factory=set)
    """Names of objects that must not be deleted."""
    page_size: int = 1000
    part_size: int = 1 << 30
    """The maximum number of bytes that the server stores of each part of an upload except
    the last.
    """
    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    uploads: dict[str, _Upload] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    generations: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which `open_store` reaches the server."""
        return {"endpoint_url": self.url}

    def make_bucket(self, name: str) -> None:
        """Creates an empty bucket."""
        self.buckets[name] = {}

    def fill(self, bucket: str, keys: Iterable[str], data: bytes = b"") -> None:
        """Stores many objects at once, without a request for each."""
        with self.lock:
            for key in keys:
                self.buckets[bucket][key] = _Object(data, {}, next(self.generations))


@contextmanager
def serve_gcs() -> Iterator[GCSServer]:
    """Serves the API on a free port until the block ends. Each request is atomic."""
    server = GCSServer()

    def handle(request: Request) -> Reply:
        server.requests.append(f"{request.method} {request.target}")
        server.tokens.append(request.headers.get("Authorization", ""))
        if server.guard is not None and not server.guard(request):
            return _Refusal(403, "forbidden", "other credentials").reply
        with server.lock:
            try:
                return _route(server, request)
            except _Refusal as refusal:
                return refusal.reply

    with serve(handle) as server.url:
        yield server


class _Object:
    __slots__ = ("data", "ended", "generation", "metadata", "updated")

    def __init__(self, data: bytes, metadata: dict[str, str], generation: int) -> None:
        self.data = data
        self.metadata = metadata
        self.generation = generation
        self.updated = clock.now()
        self.ended: datetime | None = None
        """When it was replaced or deleted."""

    def resource(self, name: str) -> dict[str, object]:
        return {
            "name": name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "updated": _text(self.updated),
            "timeCreated": _text(self.updated),
            "metadata": self.metadata,
        }

    def retained(self, name: str, *, seconds: int | None) -> dict[str, object]:
        """The resource of a noncurrent object, or of one that is soft-deleted for some time."""
        assert self.ended is not None
        if seconds is None:
            return {**self.resource(name), "timeDeleted": _text(self.ended)}
        hard = _text(self.ended + timedelta(seconds=seconds))
        times = {"softDeleteTime": _text(self.ended), "hardDeleteTime": hard}
        return {**self.resource(name), **times}


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class _Upload:
    bucket: str
    name: str
    metadata: dict[str, str]
    condition: str | None
    data: bytearray = field(default_factory=bytearray)
    made: _Object | None = None


class _Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str, *, plain: bool = False) -> None:
        detail = {"message": message, "domain": "global", "reason": reason}
        document = {"error": {"code": status, "message": message, "errors": [detail]}}
        body = message if plain else json.dumps(document)
        self.reply = Reply(status=status, body=body.encode())


def _route(server: GCSServer, request: Request) -> Reply:
    parts = urlsplit(request.target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if parts.path == "/token":
        return _json({"access_token": server.token, "expires_in": 3600, "token_type": "Bearer"})
    if parts.path == "/batch/storage/v1":
        return _batch(server, request)
    if "upload_id" in query:
        return _continue_upload(server, request, query["upload_id"])
    found = re.fullmatch(
        r"(/upload)?/storage/v1/b/([^/]+)(?:/(storageLayout|o(?:/([^/]+))?))?", parts.path
    )
    if found is None:
        raise _Refusal(404, "notFound", "Not Found")
    media = query.get("alt") == "media"
    bucket = unquote(found[2])
    if bucket not in server.buckets:
        raise _Refusal(404, "notFound", "The specified bucket does not exist.", plain=media)
    if found[1]:
        return _upload(server, request, bucket, query)
    if found[3] is None and server.hides_settings:
        raise _Refusal(403, "forbidden", "no permission storage.buckets.get")
    if found[3] is None:
        return _json(server.settings.get(bucket, {}))
    if found[3] == "storageLayout":
        return _json({"locationType": server.location_type})
    if found[4] is None:
        if "versions" in query or ("softDeleted" in query and server.knows_soft_delete):
            return _list_retained(server, bucket, query)
        return _list(server, bucket, query)
    name = unquote(found[4])
    here = server.buckets[bucket].get(name)
    if "generation" in query:
        wanted = bucket, name, int(query["generation"])
        here = next((o for b, n, o in server.noncurrent if (b, n, o.generation) == wanted), None)
    if here is None:
        raise _Refusal(404, "notFound", f"No such object: {bucket}/{name}", plain=media)
    if request.method == "DELETE":
        if name in server.denied:
            raise _Refusal(403, "forbidden", "no permission storage.objects.delete")
        _retire(server, bucket, name, here, is_noncurrent="generation" in query)
        return Reply(status=204)
    if query.get("ifGenerationMatch", str(here.generation)) != str(here.generation):
        raise _Refusal(412, "conditionNotMet", "Precondition Failed", plain=media)
    return _download(request, here) if media else _json(here.resource(name))


def _json(document: object) -> Reply:
    return Reply(
        status=200, headers={"Content-Type": "application/json"}, body=json.dumps(document).encode()
    )


def _download(request: Request, here: _Object) -> Reply:
    span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
    if span is None:
        return Reply(status=200, body=here.data)
    first, last = int(span[1]), int(span[2])
    if first >= len(here.data):
        raise _Refusal(416, "requestedRangeNotSatisfiable", "no such range", plain=True)
    return Reply(status=206, body=here.data[first : last + 1])


def _list(server: GCSServer, bucket: str, query: dict[str, str]) -> Reply:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    after = query.get("pageToken", "")
    entries: dict[str, dict[str, object] | None] = {}
    for name in sorted(server.buckets[bucket]):
        if not name.startswith(prefix) or name < query.get("startOffset", ""):
            continue
        below, slash, _ = name[len(prefix) :].partition(delimiter or "\0")
        entry = prefix + below + slash
        if entry > after and entry not in entries:
            here = server.buckets[bucket][name]
            entries[entry] = None if slash else here.resource(name)
        if len(entries) > server.page_size:
            break
    shown = list(entries)[: server.page_size]
    answer: dict[str, object] = {
        "items": [entries[entry] for entry in shown if entries[entry] is not None],
        "prefixes": [entry for entry in shown if entries[entry] is None],
    }
    if len(entries) > len(shown):
        answer["nextPageToken"] = shown[-1]
    return _json(answer)


def _list_retained(server: GCSServer, bucket: str, query: dict[str, str]) -> Reply:
    """Lists objects with their noncurrent versions, or soft-deleted ones, in the order of names and
    generations.
    """
    if "versions" in query:
        old = [each for each in server.noncurrent if each[0] == bucket]
        found = [(n, o.generation, o.retained(n, seconds=None)) for _, n, o in old]
        live = server.buckets[bucket].items()
        found += [(name, here.generation, here.resource(name)) for name, here in live]
    else:
        seconds = _soft_seconds(server, bucket)
        old = [each for each in server.soft_deleted if each[0] == bucket]
        found = [(n, o.generation, o.retained(n, seconds=seconds)) for _, n, o in old]
    found = sorted((each for each in found if each[0].startswith(query["prefix"])), key=_order)
    first = int(query.get("pageToken", "0"))
    answer: dict[str, object] = {
        "items": [resource for *_, resource in found[first : first + server.page_size]]
    }
    if first + server.page_size < len(found):
        answer["nextPageToken"] = str(first + server.page_size)
    return _json(answer)


def _order(each: tuple[str, int, object]) -> tuple[str, int]:
    return each[:2]


def _retire(
    server: GCSServer, bucket: str, name: str, here: _Object, *, is_noncurrent: bool = False
) -> None:
    """Deletes or replaces an object: it may stay as a noncurrent version, or soft-deleted."""
    if is_noncurrent:
        server.noncurrent.remove((bucket, name, here))
    else:
        del server.buckets[bucket][name]
    here.ended = here.ended if is_noncurrent else clock.now()
    if not is_noncurrent and server.settings.get(bucket, {}).get("versioning", {}).get("enabled"):
        server.noncurrent.append((bucket, name, here))
    elif _soft_seconds(server, bucket):
        server.soft_deleted.append((bucket, name, here))


def _soft_seconds(server: GCSServer, bucket: str) -> int:
    policy = server.settings.get(bucket, {}).get("softDeletePolicy", {})
    return int(policy.get("retentionDurationSeconds", 0))


def _upload(server: GCSServer, request: Request, bucket: str, query: dict[str, str]) -> Reply:
    condition = query.get("ifGenerationMatch")
    match query["uploadType"]:
        case "media":
            return _store(server, bucket, query["name"], request.body, {}, condition)
        case "multipart":
            description, data = _related(request)
            metadata = description.get("metadata", {})
            return _store(server, bucket, description["name"], data, metadata, condition)
        case _:
            description = json.loads(request.body)
            _check(server, bucket, description["name"], condition)
            upload_id = str(next(server.generations))
            server.uploads[upload_id] = _Upload(
                bucket, description["name"], description.get("metadata", {}), condition
            )
            host = request.headers["Host"]
            location = f"http://{host}/upload/session?upload_id={upload_id}"
            return Reply(status=200, headers={"Location": location})


def _related(request: Request) -> tuple[dict[str, object], bytes]:
    """Splits a body into description and data; the data ends at the first delimiter (RFC 2046)."""
    boundary = request.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
    _, first, rest = request.body.partition(b"--" + boundary)[2].partition(b"\r\n\r\n")
    assert first
    description, _, rest = rest.partition(b"\r\n--" + boundary)
    data = rest.partition(b"\r\n\r\n")[2].partition(b"\r\n--" + boundary)[0]
    return json.loads(description), data


def _continue_upload(server: GCSServer, request: Request, upload_id: str) -> Reply:
    upload = server.uploads.get(upload_id)
    if upload is None:
        raise _Refusal(410, "gone", "no such upload", plain=True)
    if request.method == "DELETE":
        del server.uploads[upload_id]
        return Reply(status=499)
    if upload.made is not None:
        return _json(upload.made.resource(upload.name))
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", request.headers["Content-Range"])
    assert span is not None and int(span[2]) - int(span[1]) + 1 == len(request.body)
    first, size = int(span[1]), int(span[3])
    if first > len(upload.data):
        raise _Refusal(503, "backendError", "a part is missing", plain=True)
    # Bytes that are already stored are ignored.
    fresh = request.body[len(upload.data) - first :]
    upload.data += fresh if int(span[2]) + 1 == size else fresh[: server.part_size]
    if len(upload.data) < size:
        return Reply(status=308, headers={"Range": f"bytes=0-{len(upload.data) - 1}"})
    data = bytes(upload.data)
    reply = _store(server, upload.bucket, upload.name, data, upload.metadata, upload.condition)
    upload.made = server.buckets[upload.bucket][upload.name]
    return reply


def _check(server: GCSServer, bucket: str, name: str, condition: str | None) -> None:
    here = server.buckets[bucket].get(name)
    generation = here.generation if here is not None else 0
    if server.honours_conditions and condition not in (None, str(generation)):
        raise _Refusal(412, "conditionNotMet", "At least one condition did not hold.")


def _store(
    server: GCSServer,
    bucket: str,
    name: object,
    data: bytes,
    metadata: object,
    condition: str | None,
) -> Reply:
    assert isinstance(name, str) and isinstance(metadata, dict)
    _check(server, bucket, name, condition)
    if (before := server.buckets[bucket].get(name)) is not None:
        _retire(server, bucket, name, before)
    made = _Object(data, metadata, next(server.generations))
    server.buckets[bucket][name] = made
    return _json(made.resource(name))


def _batch(server: GCSServer, request: Request) -> Reply:
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    parts = request.body.split(b"--" + boundary)[1:-1]
    assert len(parts) <= 100
    answers = []
    for part in parts:
        number = re.search(rb"Content-ID: <(\d+)>", part)
        line = re.search(rb"(DELETE) (\S+) HTTP/1.1", part)
        assert number is not None and line is not None
        asked = Request(method="DELETE", target=line[2].decode(), headers=Message(), body=b"")
        try:
            reply = _route(server, asked)
        except _Refusal as refusal:
            reply = refusal.reply
        answers.append(
            b"--answers\r\nContent-Type: application/http\r\nContent-ID: <response-%s>\r\n\r\n"
            b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%s\r\n"
            % (number[1], reply.status, len(reply.body), reply.body)
        )
    body = b"".join(answers) + b"--answers--\r\n"
    return Reply(
        status=200, headers={"Content-Type": "multipart/mixed; boundary=answers"}, body=body
    )
