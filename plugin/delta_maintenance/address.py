"""Addresses, and names of tables in catalogs: of a table, of another folder, or of a file.

All code that depends on a location (which store opens it, whether an executor can reach it, which
options apply) uses an `Address` and never parses the text itself.

The name of a table in a catalog, such as `uc://main.sales.orders`, consists of a scheme, which says
which kind of catalog it belongs to, and of parts that are separated by dots, from the catalog to
the table. In a part, a dot is written `%2E` and a percent sign `%25`; `/`, `?`, `#`, `@` and
control characters are percent-encoded as well, so that a name never looks like an address with
credentials or a query. All other characters are literal.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import LINK, holds_credentials


class StoreKind(StrEnum):
    """The kinds of stores that options and rules distinguish."""

    LOCAL = "local"
    MEMORY = "memory"
    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"
    HDFS = "hdfs"
    """`hdfs:`, `webhdfs:` and `swebhdfs:`."""
    OTHER = "other"
    """All other addresses that fsspec may support, including chained ones: read-only."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address without credentials, so its `str` may be shown to anyone.

    A plain path is literal. A `file:` address is a URI (RFC 8089), decoded once. In all other
    addresses the part after the authority is literal.
    """

    scheme: str
    """In lower case; empty for a plain path."""
    authority: str
    """The bucket, container or host; empty if the address has none."""
    path: str
    """The path after the authority: decoded, without a trailing slash and, except for local paths,
    without a leading slash."""
    before: str = ""
    """The text of the address up to its path."""
    behind: str = ""
    """The rest of a chained address of fsspec, such as `::s3://bucket/archive.zip`."""

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Address:
        """Parses an address.

        `InvalidRequestError` for an empty address, for credentials, a query or a fragment, and for
        a `file:` URI without an absolute path on this machine. The message does not repeat the
        address.
        """
        address = os.fspath(text)
        if not address:
            raise InvalidRequestError("the address is empty", remedy="give a path or a URI")
        if not _SCHEME.match(address):
            return cls.of_path(address)
        if holds_credentials(address):
            raise InvalidRequestError(
                "the address contains credentials or a query",
                remedy="give the plain address, and credentials as storage options",
            )
        first, link, behind = _first_link(address)
        found = _SCHEME.match(first[len(link) :])
        if found is None:
            local = first[len(link) :]
            return cls("", "", local.rstrip("/") or local, before=link, behind=behind)
        scheme = found[1].lower()
        rest = first[len(link) + found.end() :]
        if unclear := _UNCLEAR.search(rest):
            raise InvalidRequestError(
                f"the address contains {unclear[0]!r}",
                remedy="give an address without query and fragment",
            )
        if scheme == "file":
            return replace(_file(rest), before=f"{link}file://", behind=behind)
        slashes = "//" if rest.startswith("//") else ""
        authority, slash, path = rest[len(slashes) :].partition("/")
        if not slashes:
            authority, slash, path = "", "/" if rest.startswith("/") else "", rest.removeprefix("/")
        path = path.rstrip("/")
        if authority and not path:
            slash = ""
        return cls(
            scheme,
            authority,
            path,
            before=f"{link}{scheme}:{slashes}{authority}{slash}",
            behind=behind,
        )

    @classmethod
    def of_path(cls, path: str | os.PathLike[str]) -> Address:
        """Returns the address of a local path, even if it starts like a scheme."""
        text = os.fspath(path)
        # A name that starts like a scheme gets the prefix `./`.
        before = "./" if _SCHEME.match(text) else ""
        return cls("", "", text.rstrip("/") or text, before=before)

    @property
    def kind(self) -> StoreKind:
        """The kind of store at the address."""
        return StoreKind.OTHER if self.is_chained else _KINDS.get(self.scheme, StoreKind.OTHER)

    @property
    def is_chained(self) -> bool:
        """Whether it chains several file systems of fsspec."""
        # An IPv6 address in brackets also contains two colons.
        return bool(self.behind) or "::" in self.before.partition("[")[0]

    @property
    def is_local(self) -> bool:
        """Whether it is a path on this machine."""
        return self.kind is StoreKind.LOCAL

    @property
    def name(self) -> str:
        """The last segment of the path; empty for the root of a store."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        """The folder that contains the file. `InvalidRequestError` for the root of a store."""
        folder, slash, name = self.path.rpartition("/")
        if not name:
            raise InvalidRequestError(
                f"the address {self} names no file", remedy="give the address of a file"
            )
        if self.scheme in ("", "file"):
            return replace(self, path=folder or slash or ".")
        before = self.before.removesuffix("/") if self.authority and not folder else self.before
        return replace(self, path=folder, before=before)

    def join(self, path: str) -> Address:
        """Returns the address of a path below this one, such as a file in a folder."""
        joined = f"{self.path.rstrip('/')}/{path}" if self.path else path
        bare = self.scheme not in ("", "file") and not self.before.endswith(("/", ":"))
        return replace(self, path=joined, before=f"{self.before}/" if bare else self.before)

    def absolute(self) -> Address:
        """Returns the address with the current directory resolved, so that it is valid in any
        directory.
        """
        if self.scheme or self.is_chained:
            return self
        return Address.of_path(os.path.abspath(self.path))

    def __str__(self) -> str:
        path = quote(self.path) if self.scheme == "file" else self.path
        return f"{self.before}{path}{self.behind}"


def place_of(text: str) -> tuple[str, str, str]:
    """Returns where an address leads, equal for all its forms: `s3:` and `s3a:`, a path and a
    `file:` URI, with and without a slash at the end.

    Reads nothing, so that every machine gets the same result: a link is a place of its own.
    """
    address = Address.parse(text).absolute()
    if address.is_local:
        return str(address.kind), "", os.path.normpath(address.path).strip("/")
    # In stores of objects, `..` is a name like any other.
    store = address.before.rstrip("/") if address.kind is StoreKind.OTHER else str(address.kind)
    return store, address.authority, f"{address.path}{address.behind}"


def is_below(place: Sequence[str], folder: Sequence[str]) -> bool:
    """Whether a place is a folder, or in it."""
    *store, path = place
    *of_folder, root = folder
    return store == of_folder and f"{path}/".startswith(f"{root}/" if root else "")


def lie_within_each_other(one: str, other: str) -> bool:
    """Whether one of two addresses leads to a folder within that of the other."""
    first, second = place_of(one), place_of(other)
    return first != second and (is_below(first, second) or is_below(second, first))


def _first_link(address: str) -> tuple[str, str, str]:
    """Splits a chained address: the link that contains the files, the links before it, the rest.

    `simplecache::s3://bucket/t` and `zip://folder::s3://bucket/archive.zip` are interpreted as in
    fsspec: a link without an address of its own wraps the next one.
    """
    links = _LINK.split(address)
    count = 0
    while count < len(links) - 1 and _WRAPPER.fullmatch(links[count]):
        count += 1
    before = "".join(f"{link}::" for link in links[:count])
    behind = "".join(f"::{link}" for link in links[count + 1 :])
    return before + links[count], before, behind


def _file(rest: str) -> Address:
    """Parses a `file:` URI, from the text after its scheme."""
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
    try:
        path = unquote(path, errors="strict")
    except UnicodeDecodeError:
        path = ""
    if authority not in ("", "localhost") or not PurePosixPath(path).is_absolute():
        raise InvalidRequestError(
            "the file: address does not name an absolute path on this machine",
            remedy="write file:///PATH or the plain path",
        )
    return Address("file", "", path.rstrip("/") or "/")


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LINK = re.compile(LINK)
_WRAPPER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_UNCLEAR = re.compile(r"[?#]")
S3_SCHEMES = ("s3", "s3a", "s3n")
GCS_SCHEMES = ("gs", "gcs")
AZURE_SCHEMES = ("abfss", "abfs", "az")
HDFS_SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
_KINDS = {
    "": StoreKind.LOCAL,
    "file": StoreKind.LOCAL,
    "memory": StoreKind.MEMORY,
    **dict.fromkeys(S3_SCHEMES, StoreKind.S3),
    **dict.fromkeys(GCS_SCHEMES, StoreKind.GCS),
    **dict.fromkeys(AZURE_SCHEMES, StoreKind.AZURE),
    **dict.fromkeys(HDFS_SCHEMES, StoreKind.HDFS),
}


class CatalogKind(StrEnum):
    """The kinds of catalogs. The value is the scheme of the names of their tables."""

    UNITY = "uc"
    """Unity Catalog: the open-source server and Databricks."""
    GLUE = "glue"
    """AWS Glue Data Catalog."""
    HIVE = "hms"
    """Hive Metastore."""
    LAKEKEEPER = "lakekeeper"
    """Lakekeeper, generic tables."""
    POLARIS = "polaris"
    """Apache Polaris, generic tables."""
    GRAVITINO = "gravitino"
    """Apache Gravitino."""


@dataclass(frozen=True, slots=True, order=True)
class CatalogName:
    """The name of a table. Its `str` can be parsed again."""

    kind: CatalogKind
    parts: tuple[str, ...]
    """From the catalog to the table, not encoded; at least two parts. Namespaces of several levels
    have one part per level."""

    @classmethod
    def parse(cls, text: str) -> CatalogName:
        """Parses a name. `InvalidRequestError` if it has another form."""
        scheme, mark, rest = text.partition("://")
        if not mark or scheme.lower() not in _SCHEMES:
            raise InvalidRequestError(
                f"{text!r} is not the name of a table in a catalog",
                remedy="write it like uc://CATALOG.SCHEMA.TABLE",
            )
        pieces = rest.split(".")
        if len(pieces) < 2 or not all(pieces) or _RESERVED.search(rest):
            raise InvalidRequestError(
                f"the name {text!r} has an empty part, too few parts or a reserved character",
                remedy=f"write it like {scheme.lower()}://CATALOG.SCHEMA.TABLE, with %2E for a dot "
                "within a part",
            )
        try:
            parts = tuple(unquote(piece, errors="strict") for piece in pieces)
        except UnicodeDecodeError:
            raise InvalidRequestError(
                f"the name {text!r} is not percent-encoded UTF-8", remedy="write % as %25"
            ) from None
        return cls(CatalogKind(scheme.lower()), parts)

    @property
    def namespace(self) -> tuple[str, ...]:
        """The parts without the table."""
        return self.parts[:-1]

    @property
    def table(self) -> str:
        """The last part."""
        return self.parts[-1]

    @property
    def pattern_text(self) -> str:
        """The encoded parts without the scheme, as patterns of a policy match them."""
        return ".".join(encode_part(part) for part in self.parts)

    def __str__(self) -> str:
        return f"{self.kind}://{self.pattern_text}"


class Access(StrEnum):
    """What vended credentials are for."""

    READ = "read"
    READ_WRITE = "read_write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The address of a table, and the options of its store."""

    address: str
    storage_options: dict[str, str] = field(repr=False)
    """Without vended credentials: they refer to the catalog instead (`reference`)."""
    name: CatalogName | None = None
    """Its name in its catalog; None for a table that was given by its address."""


def is_catalog_option(name: str) -> bool:
    """Whether a storage option concerns the table's catalog, not its store."""
    return name.startswith(CATALOG_PREFIX)


def is_catalog_name(text: str) -> bool:
    """Whether a text that names a table has the scheme of a catalog."""
    return text.partition("://")[0].lower() in _SCHEMES and "://" in text


def is_in(name: CatalogName, where: str) -> bool:
    """Whether a name is that of a part of a catalog, or below it; `where` has the scheme."""
    return f"{name}.".startswith(f"{where}.")


def parts_of(where: str) -> tuple[str, ...]:
    """Returns the parts of a name or of a namespace with the scheme."""
    return tuple(unquote(part) for part in where.partition("://")[2].split(".") if part)


def encode_part(part: str) -> str:
    """Returns one part of a name as it is written."""
    return _ENCODED.sub(lambda found: quote(found[0], safe=""), part).replace(".", "%2E")


CATALOG_PREFIX = "catalog_"
"""The beginning of the names of the options of catalogs."""
CATALOG_TABLE = "catalog_table"
"""The storage option with the name of a table in its catalog."""
_SCHEMES = frozenset(kind.value for kind in CatalogKind)
_RESERVED = re.compile(r"[/?#@\x00-\x1f\x7f]")
_ENCODED = re.compile(r"[%/?#@:*\x00-\x1f\x7f]")


def identity_of(uri: str) -> str:
    """Returns a digest that is equal for all forms of the address of one table."""
    try:
        place: tuple[str, ...] = place_of(uri)
    except InvalidRequestError:
        # Such as an address with credentials, whose failed assessment is stored.
        place = ("", uri)
    return digest_of("\0".join(place))


def digest_of(text: str) -> str:
    """Returns a digest of any text that can be part of the name of a file."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
