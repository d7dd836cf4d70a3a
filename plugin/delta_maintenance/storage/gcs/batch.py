"""Batch deletion of objects in Google Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.parser import BytesParser
from email.policy import HTTP

from delta_maintenance.storage.core.request_failure import PAUSES, RequestFailure
from delta_maintenance.storage.gcs.client import GCSClient, GCSFailure, failure_of


def delete_objects(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    """Deletes exactly these objects. Returns the failure for each object that may still exist.

    A key counts as deleted only if the answer confirms that key.
    """
    batches = [keys[first : first + _PER_BATCH] for first in range(0, len(keys), _PER_BATCH)]
    if len(batches) == 1:
        return _delete(client, batches[0])
    kept: dict[str, RequestFailure] = {}
    with ThreadPoolExecutor(_BATCHES_AT_ONCE) as pool:
        for failures in pool.map(lambda batch: _delete(client, batch), batches):
            kept |= failures
    return kept


def _delete(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    kept = _attempt(client, keys)
    for pause in PAUSES:
        # Single requests of a batch can be throttled.
        again = [key for key, failure in kept.items() if failure.unanswered or failure.conflict]
        if not again:
            break
        client.sleep(pause)
        kept = {key: kept[key] for key in kept if key not in again} | _attempt(client, again)
    return kept


def _attempt(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    kept: dict[str, RequestFailure] = {}
    try:
        if len(keys) == 1:
            client.send("DELETE", client.object_path(keys[0]))
            return {}
        answer = client.send(
            "POST",
            "/batch/storage/v1",
            headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"},
            body=_requests(client, keys),
        )
        answers = _answers(answer.headers.get("Content-Type", ""), answer.body)
    except RequestFailure as failure:
        return {} if failure.missing and len(keys) == 1 else dict.fromkeys(keys, failure)
    for number, key in enumerate(keys):
        status, body = answers.get(number, (200, b""))
        if number not in answers:
            kept[key] = GCSFailure(status=200, code="NotConfirmed", detail="")
        elif not 200 <= status < 300:
            refusal = failure_of(status, body)
            if not refusal.missing:
                kept[key] = refusal
    return kept


def _requests(client: GCSClient, keys: Sequence[str]) -> bytes:
    """Returns the body of a batch. The boundary cannot occur in percent-encoded paths."""
    parts = (
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
        f"DELETE {client.object_path(key)} HTTP/1.1\r\n\r\n\r\n"
        for number, key in enumerate(keys)
    )
    return ("".join(parts) + f"--{_BOUNDARY}--\r\n").encode()


def _answers(content_type: str, body: bytes) -> dict[int, tuple[int, bytes]]:
    """Returns status and body of each answer in a batch, by the number of its request."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    answers = {}
    for part in BytesParser(policy=HTTP).parsebytes(head + body).walk():
        number = re.search(r"response-(\d+)>?$", str(part.get("Content-ID", "")).strip())
        content = part.get_payload(decode=True)
        if number is None or not isinstance(content, bytes):
            continue
        status = re.match(rb"HTTP/[\d.]+ (\d{3})\b", content.lstrip())
        if status is not None:
            parts = re.split(rb"\r?\n\r?\n", content, maxsplit=1)
            answers[int(number[1])] = (int(status[1]), parts[1] if len(parts) > 1 else b"")
    return answers


_PER_BATCH = 100
_BATCHES_AT_ONCE = 8
_BOUNDARY = "==delete=="
