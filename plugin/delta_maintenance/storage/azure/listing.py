"""Listings of the Blob service, as XML."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from urllib.parse import unquote
from xml.etree import ElementTree

from delta_maintenance import clock
from delta_maintenance.rest.client import Answer
from delta_maintenance.storage.azure.client import AzureFailure


def listing_of(answer: Answer, *, tag: str = "EnumerationResults") -> ElementTree.Element:
    """Parses the answer to a listing, or another one. `AzureFailure` if it is something else."""
    try:
        listing = ElementTree.fromstring(answer.body)
    except ElementTree.ParseError:
        listing = None
    if listing is None or listing.tag != tag:
        # Sent by a proxy or a gateway, not by Azure.
        raise AzureFailure(status=None, code="NotXML", detail="not an answer of the Blob API")
    return listing


def is_directory(blob: ElementTree.Element) -> bool:
    """Whether an entry is a directory, or the marker of one."""
    is_folder = (blob.findtext("Metadata/hdi_isfolder") or "").lower() == "true"
    return is_folder or blob.findtext("Properties/ResourceType") == "directory"


def name_of(element: ElementTree.Element) -> str:
    """Returns the name of an entry or of a common prefix."""
    name = element.find("Name")
    text = (name.text if name is not None else None) or ""
    encoded = name is not None and name.get("Encoded") == "true"
    return unquote(text, errors="strict") if encoded else text


def millis_of(text: str) -> int:
    """Converts a date of HTTP to milliseconds since 1970-01-01 UTC."""
    return clock.epoch_millis(parsedate_to_datetime(text))
