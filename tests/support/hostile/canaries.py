"""Secrets for which all outputs are searched, and servers that repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.servers.loopback import Hangup, Reply, Request

SECRET = "Y2FuYXJ5LWluLXRoZS1jb2FsLW1pbmU="
"""Base64, like account keys."""
OPTIONS: dict[str, tuple[str, Callable[[str], dict[str, str]]]] = {
    "s3": (
        "s3://bucket/t",
        lambda url: {"key": "K", "secret": SECRET, "token": SECRET, "endpoint_url": url},
    ),
    "gcs": (
        "gs://bucket/t",
        lambda url: {
            "endpoint_url": url,
            "token": json.dumps(
                {
                    "type": "authorized_user",
                    "client_id": "me",
                    "client_secret": SECRET,
                    "refresh_token": SECRET,
                }
            ),
        },
    ),
    "azure-key": (
        "az://data/t",
        lambda url: {"account_name": "a", "account_key": SECRET, "endpoint": url},
    ),
    "azure-signature": (
        "az://data/t",
        lambda url: {"account_name": "a", "sas_token": f"sv=1&sig={SECRET}", "endpoint": url},
    ),
    "azure-token": (
        "az://data/t",
        lambda url: {"account_name": "a", "bearer_token": SECRET, "endpoint": url},
    ),
}
"""For each way to authenticate: an address, and the options for a server at a URL."""


def echo(request: Request) -> Reply:
    """Answers like a faulty proxy, with the request itself. Google gets its token first."""
    if (request.method, request.target) == ("POST", "/"):
        token = {"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"}
        headers = {"Content-Type": "application/json"}
        return Reply(status=200, headers=headers, body=json.dumps(token).encode())
    said = f"{request.headers.get('Authorization')} {request.target} {request.headers.items()}"
    body = json.dumps({"error": {"message": said, "errors": [{"reason": "forbidden"}]}})
    xml = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>"
    return Reply(status=403, body=(xml if "xml" in request.target else body + xml).encode())


def hang_up(request: Request) -> Reply:
    """Closes the connection without an answer."""
    raise Hangup
