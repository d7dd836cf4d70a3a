"""The budget of a policy: what the runs of a day, and each run, may take for all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from delta_maintenance.operations.core.policy_values import Bytes, Duration, PolicyModel, Share

Unit = Literal["cpu_seconds", "seconds", "bytes_rewritten", "requests", "money"]


def _not_zero(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("a limit is longer than 0 seconds; leave it out for no limit")
    return value


_Time = Annotated[Duration, AfterValidator(_not_zero)]


class BudgetLimits(PolicyModel):
    """Limits of what operations may take. What is not named is not limited."""

    processor_time: _Time | None = None
    """Processor time, with the time of tasks on Spark, such as `8 hours`."""
    wall_time: _Time | None = None
    """The time that the operations take, one added to the other."""
    rewritten: Annotated[Bytes, Field(gt=0)] | None = None
    """Bytes of data files that rewriting operations write."""
    requests: Annotated[int, Field(ge=1)] | None = None
    """Requests to the stores of the tables."""
    money: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """What requests and time cost by the `prices` of the policy, in their currency."""

    def amounts(self) -> Mapping[Unit, float]:
        """Returns the limits by unit."""
        return dict(self._amounts())

    def _amounts(self) -> Iterator[tuple[Unit, float]]:
        if self.processor_time is not None:
            yield "cpu_seconds", self.processor_time.total_seconds()
        if self.wall_time is not None:
            yield "seconds", self.wall_time.total_seconds()
        if self.rewritten is not None:
            yield "bytes_rewritten", float(self.rewritten)
        if self.requests is not None:
            yield "requests", float(self.requests)
        if self.money is not None:
            yield "money", self.money


def _share(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("a share is a number from 0 to 1; write 40% as 0.4")
    return value


class BudgetRule(PolicyModel):
    """What maintenance may spend. The operations that save readers the most for what they cost come
    first, and the others wait; repairs and deadlines come before them."""

    day: BudgetLimits = BudgetLimits()
    """Limits of all runs of a day, in UTC."""
    run: BudgetLimits = BudgetLimits()
    """Limits of each run over the tables."""
    most_intervals: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 7
    """How many of its intervals (`every` of its rule, at least a day) a due operation waits at
    most, as far as the budget suffices for it."""
    owners: Mapping[str, Annotated[Share, Field(gt=0), BeforeValidator(_share)]] = Field(
        default_factory=dict
    )
    """The greatest shares of the limits for the tables of owners."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not {**self.day.amounts(), **self.run.amounts()}:
            raise ValueError("a budget needs a limit; add one to `day` or `run`")
        return self

    @property
    def limits_money(self) -> bool:
        """Whether prices are needed."""
        return self.day.money is not None or self.run.money is not None
