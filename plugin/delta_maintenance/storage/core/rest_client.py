"""The common part of the clients of REST interfaces."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any, BinaryIO, ClassVar

from delta_maintenance.storage.core.http_session import Answer, HttpSession, NoAnswer
from delta_maintenance.storage.core.request_failure import RequestFailure


class RestClient:
    """Sends requests through a session and turns answers without success into failures."""

    failure: ClassVar[type[RequestFailure]]
    """The failures of the store."""
    interface: ClassVar[str]
    """The name of the interface, for messages."""
    success: ClassVar[Container[int]] = range(200, 300)
    """The HTTP statuses of a success."""

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
        """Sends a request once. Raises `refused(answer)` for an answer without success."""
        try:
            answer = self._session.send(method, url, headers, body)
        except NoAnswer as error:
            failure = self.failure(status=None, code=error.code, said=error.said)
        else:
            if answer.status in self.success:
                return answer
            failure = refused(answer)
        # Not from within the handler, so that the failure does not refer to another error.
        raise failure

    def _fields(self, answer: Answer) -> dict[str, Any]:
        """The JSON object in an answer."""
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            # A proxy or a gateway answered in the place of the store.
            raise self.failure(status=None, code="NotJSON", said=f"no answer of {self.interface}")
        return found
