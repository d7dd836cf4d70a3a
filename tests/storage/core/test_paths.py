from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, InvalidRequestError
from delta_maintenance.storage.core.paths import (
    check_directory,
    check_path,
    check_start,
    decode_log_path,
)
from delta_maintenance.testing.store_contract import ODD_NAMES, UNCLEAN_PATHS


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_clean_path_is_returned_unchanged(name: str) -> None:
    assert check_path(name) == name
    assert check_path(f"{name}/{name}") == f"{name}/{name}"
    assert check_directory(name) == name
    assert check_start(name) == name


@pytest.mark.parametrize("path", UNCLEAN_PATHS)
def test_an_unclean_path_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(InvalidRequestError) as got:
        check_path(path)
    assert "\n" not in str(got.value) and "\x00" not in str(got.value)


def test_the_root_is_a_directory_but_no_file() -> None:
    assert check_directory("") == ""
    assert check_start("") == ""


@given(st.text())
def test_no_accepted_path_leaves_the_root_or_names_a_directory_twice(path: str) -> None:
    try:
        check_path(path)
    except InvalidRequestError:
        return
    path.encode()
    assert not {"", ".", ".."} & set(path.split("/"))


@pytest.mark.conformance("FILE-01")
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_encoded_path_decodes_to_itself_once(path: str) -> None:
    assert decode_log_path(quote(path)) == path
    assert decode_log_path(quote(quote(path))) == quote(path)


@pytest.mark.conformance("FILE-01")
@pytest.mark.parametrize(
    ("logged", "literal"),
    [
        ("a+b", "a+b"),
        ("a%20b", "a b"),
        ("a%2520b", "a%20b"),
        ("50%", "50%"),
        ("%zz", "%zz"),
        ("p=%C3%BC", "p=ü"),
        ("p=ü/%3F", "p=ü/?"),
        ("a?b#c", "a?b#c"),
    ],
)
def test_a_log_path_is_decoded_exactly_once(logged: str, literal: str) -> None:
    assert decode_log_path(logged) == literal


@pytest.mark.conformance("FILE-01")
@pytest.mark.parametrize("logged", ["%FF", "%FE", "a/%C3", "%C3ü", "%ED%A0%80"])
def test_a_log_path_that_is_not_utf_8_is_an_error_and_never_replaced(logged: str) -> None:
    with pytest.raises(CorruptTableError, match="not UTF-8"):
        decode_log_path(logged)
