"""Removal of secrets from addresses, for all places that show text.

Addresses with credentials are refused before anything is opened (`address.Address.parse`), but the
error message, a log line or a traceback may still quote them. Every such text passes through
`redact`, or through `redact_address` if it is a single address. When in doubt, both remove too much
rather than too little.
"""

from __future__ import annotations

import re

HIDDEN = "***"
"""The text that replaces a secret."""


def redact(text: str) -> str:
    """Returns the text without the credentials in the addresses that it quotes.

    Removed are user names and passwords before a host, query strings, and the values of secret
    parameters, such as `sig=` of Azure.
    """
    text = _QUOTED.sub(_redact_quoted, text)
    text = _BARE_QUOTED.sub(rf"\1{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\1{HIDDEN}", text)


def redact_address(address: str) -> str:
    """Like `redact`, for a single address or path, which may contain blanks."""
    links = _LINKS.split(address)
    return _PARAMETER.sub(rf"\1{HIDDEN}", "".join(map(_redact_link, links)))


def holds_credentials(address: str) -> bool:
    """Whether `redact` would remove a part of the address."""
    return redact_address(address) != address


def _redact_quoted(found: re.Match[str]) -> str:
    # A colon at the end belongs to the text around the address.
    rest = found[3].rstrip(":")
    return found[1] + _without_credentials(found[2], rest) + found[3][len(rest) :]


def _redact_link(link: str) -> str:
    scheme, mark, rest = link.partition("://")
    if mark and _SCHEME.fullmatch(scheme):
        return f"{scheme}://" + _without_credentials(f"{scheme}://", rest)
    bare = _BARE.match(link)
    return f"{bare[1]}{HIDDEN}@{link.rpartition('@')[2]}" if bare else link


def _without_credentials(start: str, rest: str) -> str:
    """Returns `rest`, the part of an address after `start` (such as `s3://`), without
    credentials.
    """
    scheme = start.partition(":")[0].lower()
    slashes = len(rest) - len(rest.lstrip("/"))
    head, rest = rest[:slashes], rest[slashes:]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    behind = rest[len(authority) :]
    user, at, host = authority.rpartition("@")
    if at:
        suspect = not _USER_NAMES.get(scheme, _NOTHING).fullmatch(user)
    else:
        decoded = authority.replace("%3a", ":").replace("%3A", ":")
        if scheme in CATALOGS:
            # A colon in a name is encoded; one behind it belongs to the text around the name.
            decoded = authority.rstrip(":")
        suspect = ":" in decoded and not _is_host_and_port(scheme, authority)
    if suspect:
        # A password may contain slashes, so it ends at the last `@` of the whole text.
        _, at, host = rest.rpartition("@")
        authority, behind = (f"{HIDDEN}@", host) if at else (HIDDEN, "")
    return head + authority + _QUERY.sub(rf"\1{HIDDEN}", behind)


def _is_host_and_port(scheme: str, authority: str) -> bool:
    if scheme in _BUCKETS:
        return False
    host, _, port = authority.rpartition(":")
    bare = host.startswith("[") and host.endswith("]") or ":" not in host
    return bare and port.isascii() and port.isdecimal() and len(port) <= 5


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
LINK = r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::)|/)"
"""The beginning of the next link of a chained address of fsspec."""
_LINKS = re.compile(f"({LINK})")
_QUOTED = re.compile(rf"(?<![A-Za-z0-9+.-])(([A-Za-z0-9+.-]+)://)((?:(?!{LINK})[^\s\"'<>`])+)")
_BUCKETS = frozenset(("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az", "wasb", "wasbs"))
"""Schemes whose addresses contain a bucket and therefore no port."""
CATALOGS = frozenset(("uc", "glue", "hms", "lakekeeper", "polaris", "gravitino"))
"""The schemes of names of tables in catalogs, which contain no host."""
_CONTAINER = re.compile(r"[a-z0-9$-]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\\-]*")
_NOTHING = re.compile(r"(?!)")
_USER_NAMES = {
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), _CONTAINER),
    **dict.fromkeys(("hdfs", "webhdfs", "swebhdfs", "sftp", "ssh", "ftp", "smb"), _USER),
}
"""Text before the `@` of a host that is not a secret."""
_BARE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/?)(?!/)[^@]*@")
_BARE_QUOTED = re.compile(
    r"(?<![^\s\"'<>`(\[{=,])([A-Za-z][A-Za-z0-9+.-]*:/?)(?!/)[^\s\"'<>`]*@", re.IGNORECASE
)
"""`USER:PASSWORD@HOST` without a scheme, or with too few slashes."""
_QUERY = re.compile(r"([?#])[^\s/?#=]*=.*", re.DOTALL)
_PARAMETER = re.compile(
    r"((?:"
    # These names are unambiguous in any position.
    r"(?:\b|%3f|%26)(?:sig|x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid"
    r"|accountkey|sharedaccess(?:key|signature))"
    # A partition column may have one of these names.
    r"|(?:[?&;#]|%3f|%26)(?:delegation|[a-z_-]*(?:token|secret|passw(?:or)?d|signature|access_?key|credential))"
    r")(?:=|%3d))"
    r"[^&;\s\"'<>`]+",
    re.IGNORECASE,
)
