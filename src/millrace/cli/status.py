"""`millrace status`: what a node says of itself, of the others and of every replication group."""

from typing import Any

from millrace.cli.common import AsJson, example, print_json, print_line, print_rows, single
from millrace.cli.http_options import DEFAULT, HttpUrl, door

app = single()

_MEMBER_COLUMNS = ("node", "state", "silent_s", "leads", "leads_meta", "mqtt", "http", "peer")
_GROUP_COLUMNS = (
    "group", "keeps", "role", "term", "leader", "commit", "applied", "last", "lag", "voters", "learners",
)  # fmt: skip


@app.command(epilog=example("millrace status", "millrace status --url http://127.0.0.1:18831 --json"))
def status(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show state and counters of a node, the members of its cluster and its replication groups."""
    node = door(url)
    answer = node.get("/status")
    cluster = node.get("/v1/cluster")
    if json:
        print_json({**answer, "cluster": cluster})
        return
    rows: list[dict[str, Any]] = []
    for name, value in answer.items():
        if name in ("cluster", "streams"):
            continue
        if isinstance(value, dict):
            rows += [{"what": f"{name} {key}", "value": inner} for key, inner in value.items()]
        else:
            rows.append({"what": name, "value": value})
    print_rows(rows, ("what", "value"), as_json=False)
    print_line()
    print_rows(cluster["members"], _MEMBER_COLUMNS, as_json=False)
    print_line()
    print_rows([_group(row) for row in cluster["groups"]], _GROUP_COLUMNS, as_json=False)


def _group(row: dict[str, Any]) -> dict[str, Any]:
    """How far each replica is behind is known where the group is led."""
    shown = {**row, "leader": row["leader"] or "none", "voters": " ".join(row["voters"])}
    shown["lag"] = " ".join(f"{node}:{lag}" for node, lag in row["lag"].items())
    shown["learners"] = " ".join(row["learners"])
    return shown
