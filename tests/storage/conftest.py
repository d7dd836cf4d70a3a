"""The contracts of stores, as tests of this project."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "delta_maintenance.testing.store_contract", "tests.support.stores.fault_contract"
)


# The store contract ships with the library, where this mark is not registered.
CONFORMANCE = {
    "test_of_those_who_race_for_a_file_exactly_one_wins": ("LOG-09", "TXN-01"),
    "test_a_put_if_absent_leaves_an_existing_file_alone": ("LOG-09", "TXN-01"),
    "test_a_name_means_itself": ("FILE-01",),
    "test_a_stream_never_replaces_a_file": ("FILE-14",),
    "test_a_lost_answer_changes_neither_winner_nor_content": ("LOG-09", "TXN-02"),
    "test_who_lost_is_not_told_to_have_won_whatever_its_answer": ("TXN-02",),
    "test_a_condition_refuted_by_its_own_first_attempt_is_a_success": ("TXN-02",),
    "test_without_any_answer_the_outcome_is_the_true_one_or_unknown": ("TXN-02",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the contracts with the requirements that they hold up."""
    for item in items:
        requirements = CONFORMANCE.get(getattr(item, "originalname", item.name), ())
        for requirement in requirements:
            item.add_marker(pytest.mark.conformance(requirement))
