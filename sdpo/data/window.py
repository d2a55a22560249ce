"""A window of dates over rows: both ends belong to it, the last day to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sdpo.errors import DataError, problem


@dataclass(frozen=True)
class DateWindow:
    """Days from `first` to `last`, each inclusive; None is open.

    Example: DateWindow.parse("2025-02-01", "2025-05-31") holds 2025-05-31T23:59:59 and not 2025-01-31T00:00:00.
    """

    first: date | None = None
    last: date | None = None

    @classmethod
    def parse(cls, first: str | None, last: str | None) -> DateWindow:
        """From texts such as "2025-02-01"; DataError when one is no date or the window is empty."""
        window = cls(_day("first date", first), _day("last date", last))
        if window.first and window.last and window.last < window.first:
            raise DataError(problem("last date", last, f"{first} or later"))
        return window

    def holds(self, row: Mapping[str, Any], field: str) -> bool:
        """Whether the row's date (ISO text, with or without a time) is in the window; DataError when it has none."""
        day = _day(field, row.get(field))
        if day is None:
            raise DataError(problem(field, None, "a date such as 2025-02-01"))
        return (self.first is None or day >= self.first) and (self.last is None or day <= self.last)


def _day(field: str, text: Any) -> date | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).date()
    except (TypeError, ValueError) as error:
        raise DataError(problem(field, text, "a date such as 2025-02-01")) from error
