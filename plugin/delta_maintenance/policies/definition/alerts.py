"""Who is told of failed tables, as keys of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from delta_maintenance.operations.core.policy_values import PolicyModel, is_reference


def _reference(text: str) -> str:
    if not is_reference(text):
        raise ValueError(
            "the address of a webhook is a secret, which a policy must not contain; refer to the "
            "environment with ${env:NAME}, or name a connection"
        )
    return text


class Webhook(PolicyModel):
    """A webhook that takes messages as `{"text": …}`: by references, never with secrets."""

    connection: str | None = None
    """The connection of Airflow: its host is the address, its password the token, if any."""
    url: Annotated[str, AfterValidator(_reference)] | None = None
    """`${env:NAME}`: the variable with the address, for the command line and Dagster; for Airflow
    without a connection."""

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.connection is None and self.url is None:
            raise ValueError("a webhook has a connection, a url or both; give one of them")
        return self


class AlertRules(PolicyModel):
    """The webhooks to which new failures are posted, one message per owner and run."""

    default: Webhook | None = None
    """For tables without an owner, and for owners that are not among `owners`."""
    owners: Mapping[str, Webhook] = Field(default_factory=dict)
    """By the owner of a table, in the policy or in its catalog."""
