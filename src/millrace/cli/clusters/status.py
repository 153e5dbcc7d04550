"""`millrace status`: what a node says of itself, of the others and of every replication group."""

from typing import Any

from millrace.cli.shared.common import AsJson, example, print_json, print_line, print_rows, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door
from millrace.cli.shared.tables import print_facts

app = single()

_MEMBER_COLUMNS = ("node", "state", "silent_s", "leads", "leads_meta", "host", "mqtt", "http", "peer")
_GROUP_COLUMNS = (
    "group", "keeps", "role", "term", "leader", "commit", "applied", "last", "lag", "voters", "learners",
)  # fmt: skip
# What goes first where the terminal is narrow.
_MEMBER_OPTIONAL = ("host", "peer", "silent_s", "mqtt", "http")
_GROUP_OPTIONAL = ("learners", "last", "voters", "term", "commit")
# These have tables of their own.
_APART = ("cluster", "streams")


@app.command(epilog=example("millrace status", "millrace status --url http://127.0.0.1:18831 --json"))
def status(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show state and counters of a node, the members of its cluster and its replication groups."""
    node = door(url)
    answer = node.get("/status")
    cluster = node.get("/v1/cluster")
    if json:
        print_json({**answer, "cluster": cluster})
        return
    names = {row["replica"]: row["node"] for row in cluster["members"] if "replica" in row}
    print_facts(_facts(answer, names))
    print_line()
    print_rows(cluster["members"], _MEMBER_COLUMNS, as_json=False, optional=_MEMBER_OPTIONAL)
    print_line()
    rows = [_group(row) for row in cluster["groups"]]
    columns = [name for name in _GROUP_COLUMNS if name != "learners" or any(row[name] for row in rows)]
    print_rows(rows, columns, as_json=False, optional=_GROUP_OPTIONAL)


def _facts(answer: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The fields of the node in one list. Of counters only those that counted; members by their names."""
    facts: dict[str, Any] = {}
    for name, value in answer.items():
        if name == "counters":
            facts |= {key: inner for key, inner in value.items() if inner}
        elif name == "waits":
            facts |= {name: "; ".join(value)} if value else {}
        elif isinstance(value, dict) and name not in _APART:
            facts |= {f"{name} {key}": _by_name(inner, names) for key, inner in value.items()}
        elif name not in _APART:
            facts[name] = value
    return facts


def _by_name(value: Any, names: dict[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    return {names.get(member, member): told for member, told in value.items()}


def _group(row: dict[str, Any]) -> dict[str, Any]:
    """How far each replica is behind is known where the group is led."""
    behind = {node: lag for node, lag in row["lag"].items() if lag}
    lag = " ".join(f"{node}:{count}" for node, count in behind.items()) or ("none" if row["lag"] else "")
    return {**row, "leader": row["leader"] or "none", "lag": lag}
