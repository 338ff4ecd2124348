"""Windows in which waves may start: days and hours of a time zone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from infra.model.spec import Window

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def is_open(windows: Sequence[Window], now: datetime) -> bool:
    """May a wave start now? Without windows always."""
    return not windows or any(start <= now < start + w.duration for w in windows for start in _openings(w, now))


def next_opening(windows: Sequence[Window], now: datetime) -> datetime | None:
    """When the next window opens after `now`; None when there are none."""
    return min((s for w in windows for s in _openings(w, now) if s > now), default=None)


def _openings(window: Window, now: datetime) -> list[datetime]:
    """Openings from a week before to a week after, in wall-clock days of the window's zone."""
    zone = ZoneInfo(window.timezone)
    at = time.fromisoformat(window.start)
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=d) for d in range(-7, 9))
    # In UTC: added to a local time, a duration would be an hour long or short across a change of clocks.
    local = (datetime.combine(day, at, tzinfo=zone) for day in days if _DAYS[day.weekday()] in window.days)
    return [opening.astimezone(UTC) for opening in local]
