"""Attributes of assets that are set for all tables, or for all of their maintenance."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

from datetime import timedelta

import dagster as dg
from pydantic import Field


class Freshness(dg.Model, dg.Resolvable):
    """A freshness policy: the maximum age of the last event of an asset."""

    fail_hours: float = Field(gt=0, description="Older than this is a failure.")
    warn_hours: float | None = Field(
        default=None, gt=0, description="Older than this is a warning."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Returns the policy as an object of Dagster."""
        warn = timedelta(hours=self.warn_hours) if self.warn_hours is not None else None
        return dg.FreshnessPolicy.time_window(
            fail_window=timedelta(hours=self.fail_hours), warn_window=warn
        )


class AssetAttributes(dg.Model, dg.Resolvable):
    """Attributes of assets, in addition to those that follow from the policy."""

    group_name: str | None = Field(default=None, description="The group, in place of the default.")
    owners: list[str] = Field(
        default_factory=list, description="Such as `team:data` or an email address."
    )
    kinds: list[str] = Field(default_factory=list, description="Beside `delta`.")
    tags: dict[str, str] = Field(default_factory=dict, description="Beside those of the policy.")
    freshness: Freshness | None = Field(default=None, description="The freshness policy.")

    def of(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the asset with these attributes."""
        more = spec.merge_attributes(
            owners=[owner for owner in self.owners if owner not in spec.owners],
            kinds=set(self.kinds),
            tags=self.tags,
        )
        if self.group_name is not None:
            more = more.replace_attributes(group_name=self.group_name)
        if self.freshness is not None:
            more = more.replace_attributes(freshness_policy=self.freshness.policy())
        return more
