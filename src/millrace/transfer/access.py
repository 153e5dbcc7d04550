"""Users, rules and tokens of a backup.

They go last into a cluster: who restores into one without users comes without a name, and is nobody from the
first user on. For the same reason those who may administer go first of all. What is there already is left out
when the copy is repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace.client.http import Http
from millrace.client.http_node import HttpError
from millrace.errors import LocalError

_PATH = "/v1/access"
_KINDS = ("users", "rules", "tokens")
_CHANGED, _FORBIDDEN = 409, (401, 403)
_TRIES = 10
# Of one request: a node takes 12,000 values, and a row has ten, or four for each rule of a token's scope.
_ROWS_MAX, _VALUES_MAX = 500, 8_000

Copy = dict[str, list[dict[str, Any]]]


@dataclass(slots=True)
class Added:
    """What a restore brought; what was there before does not count."""

    users: int = 0
    rules: int = 0
    tokens: int = 0
    differing: list[str] = field(default_factory=list)
    """Users who were there, and keep another password or other roles."""


def read_access(http: Http) -> Copy | None:
    """All of one moment; None where this user may not see it, or the node is too old to show it."""
    for _ in range(_TRIES):
        found: Copy = {kind: [] for kind in _KINDS}
        cursor: str | None = ""
        try:
            while cursor is not None:
                part = http.get(_PATH, cursor=cursor)
                for kind in _KINDS:
                    found[kind] += part[kind]
                cursor = part["next"]
        except HttpError as error:
            if error.status in (*_FORBIDDEN, 404):
                return None
            if error.status != _CHANGED:
                raise
            continue
        return found
    raise LocalError("users and rules change all the time: try again")


def has_access(http: Http) -> bool:
    """Whether the cluster has users or rules of its own."""
    try:
        return any(http.get(f"/v1/{kind}", limit=1)["items"] for kind in ("users", "rules"))
    except HttpError as error:
        if error.status in _FORBIDDEN:
            return True
        raise


def add_access(http: Http, copy: Copy) -> Added:
    added = Added()
    for part in _parts(copy):
        try:
            answer = http.call("POST", _PATH, part)
        except HttpError as error:
            if error.status in _FORBIDDEN and added.users:
                raise LocalError(
                    f"{added.users} users were restored, and from now on the cluster asks who you are: repeat"
                    " the command as one of its administrators (--users --url http://NAME@HOST:PORT)"
                ) from None
            raise
        added.users += answer["users"]
        added.rules += answer["rules"]
        added.tokens += answer["tokens"]
        added.differing += answer["differing"]
    return added


def _parts(copy: Copy) -> Iterator[Copy]:
    """The copy in requests that a node takes: users, administrators first, then rules, then tokens."""
    users = sorted(copy["users"], key=lambda user: "admin" not in user["roles"])
    part: Copy = {}
    rows = values = 0
    for kind, chosen in (("users", users), ("rules", copy["rules"]), ("tokens", copy["tokens"])):
        for row in chosen:
            row_values = 10 + 5 * len(row.get("scope") or ())
            if rows == _ROWS_MAX or values + row_values > _VALUES_MAX:
                yield part
                part, rows, values = {}, 0, 0
            part.setdefault(kind, []).append(row)
            rows += 1
            values += row_values
    if part:
        yield part
