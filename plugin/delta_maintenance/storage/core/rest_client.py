"""The common part of the REST clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any, BinaryIO, ClassVar

from delta_maintenance.storage.core.http_session import Answer, HttpSession, NoAnswer
from delta_maintenance.storage.core.request_failure import RequestFailure


class RestClient:
    """Sends requests through a session and converts unsuccessful answers to failures."""

    failure: ClassVar[type[RequestFailure]]
    """The failure class of the store."""
    interface: ClassVar[str]
    """The name of the interface, for messages."""
    success: ClassVar[Container[int]] = range(200, 300)
    """The HTTP statuses that count as success."""

    _session: HttpSession

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None,
        *,
        refused: Callable[[Answer], RequestFailure],
    ) -> Answer:
        """Sends one request. Raises `refused(answer)` for an unsuccessful answer."""
        try:
            answer = self._session.send(method, url, headers, body)
        except NoAnswer as error:
            failure = self.failure(status=None, code=error.code, detail=error.detail)
        else:
            if answer.status in self.success:
                return answer
            failure = refused(answer)
        # Raised outside the handler, so that the failure has no `__context__`.
        raise failure

    def _fields(self, answer: Answer) -> dict[str, Any]:
        """Parses the JSON object of an answer."""
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            # Sent by a proxy or a gateway, not by the store.
            raise self.failure(
                status=None, code="NotJSON", detail=f"not an answer of {self.interface}"
            )
        return found
