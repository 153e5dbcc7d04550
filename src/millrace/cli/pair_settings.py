"""What `millrace stream create|alter` say about primary-backup replication, as words of the command line."""

import math
from enum import StrEnum
from typing import Annotated, Any

import typer


class Schedule(StrEnum):
    FCFS = "fcfs"
    FRAME = "frame"


Scheduled = Annotated[Schedule | None, typer.Option(help="Primary-backup: in which order work is done.")]
Checked = Annotated[
    int | None, typer.Option("--check-interval", metavar="MS", min=1, help="Primary-backup: health checks.")
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="WHAT=MS",
        help="Primary-backup: a bound of the formulas: failover, publisher, subscriber or backup.",
    ),
]
Classes = Annotated[
    list[str] | None,
    typer.Option(
        "--topic-class",
        metavar="FILTER=T,D,L,N",
        help="Primary-backup: period and deadline in ms, messages in a row that may be lost (inf: any), "
        "messages the publisher keeps.",
    ),
]
_BOUNDS = ("failover", "publisher", "subscriber", "backup")


def pair_settings(
    schedule: Schedule | None,
    check_interval: int | None,
    bounds: list[str] | None,
    classes: list[str] | None,
) -> dict[str, Any] | None:
    """The settings as the HTTP door takes them; None where nothing was said."""
    found: dict[str, Any] = {}
    if schedule is not None:
        found["schedule"] = schedule.value
    if check_interval is not None:
        found["check_interval_ms"] = check_interval
    for bound in bounds or ():
        name, _, value = bound.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in _BOUNDS or not 0 <= number < math.inf:
            raise typer.BadParameter(f"{bound!r}: expected WHAT=MS with one of {', '.join(_BOUNDS)}")
        found[f"{name}_ms"] = int(number) if name == "failover" else number
    if classes:
        found["topics"] = [_class(text) for text in classes]
    return found or None


def _class(text: str) -> dict[str, Any]:
    filter, _, numbers = text.rpartition("=")
    words = [word.strip() for word in numbers.split(",")]
    try:
        period, deadline, tolerance, retention = words
        return {
            "filter": filter,
            "period_ms": int(period),
            "deadline_ms": int(deadline),
            "loss_tolerance": None if tolerance == "inf" else int(tolerance),
            "retention": int(retention),
        }
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected FILTER=T,D,L,N, for example 'a/#=50,50,0,2'") from None
