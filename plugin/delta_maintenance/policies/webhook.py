"""Posting a message to a webhook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec

from delta_maintenance.errors import AlertError, InvalidRequestError
from delta_maintenance.operations.core.policy_values import resolve
from delta_maintenance.policies.definition.alerts import Webhook

_TIMEOUT = (5.0, 20.0)
_MOST_ANSWER = 1 << 20


def post(url: str, text: str, *, name: str, token: str | None = None) -> None:
    """Posts `{"text": …}`, the format of chat webhooks.

    `name` stands for the address in messages, because whoever knows the address can post. Raises
    `AlertError` unless the server accepts the message.
    """
    # Imported here, because most processes post nothing.
    from delta_maintenance.rest.client import HttpSession, NoAnswer

    if find_spec("requests") is None:
        raise InvalidRequestError(
            "posting an alert needs the package requests", remedy="install requests"
        )
    if not url.startswith(("https://", "http://")):
        raise InvalidRequestError(
            f"{name} is no URL of a webhook", remedy="give one like https://HOST/PATH"
        )
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    session = HttpSession(timeout=_TIMEOUT, most_bytes=_MOST_ANSWER)
    try:
        answer = session.send("POST", url, headers, json.dumps({"text": text}).encode())
        problem = None if 200 <= answer.status < 300 else f"HTTP status {answer.status}"
    except NoAnswer as error:
        problem = error.code
    finally:
        session.close()
    # Raised outside the handler: the caught error may contain the address.
    if problem is not None:
        raise AlertError(f"the message to {name} was not accepted: {problem}")


def post_by_environment(webhook: Webhook, text: str, *, environment: Mapping[str, str]) -> bool:
    """Posts to the address in the environment variable of a webhook; false if it names none."""
    if webhook.url is None:
        return False
    post(resolve(webhook.url, environment), text, name=webhook.url)
    return True
