"""`millrace status`: what a node says of itself."""

from typing import Annotated, Any

import typer

from millrace.cli.common import AsJson, example, print_json, print_rows, single

app = single()


@app.command(epilog=example("millrace status", "millrace status --url http://127.0.0.1:18831 --json"))
def status(
    url: Annotated[str, typer.Option(help="HTTP address of the node.")] = "http://127.0.0.1:18831",
    json: AsJson = False,
) -> None:
    """Show state and counters of a node."""
    from millrace.client.http import get_json

    answer = get_json(f"{url.rstrip('/')}/status")
    if json:
        print_json(answer)
        return
    rows: list[dict[str, Any]] = []
    for name, value in answer.items():
        if isinstance(value, dict):
            rows += [{"what": f"{name} {key}", "value": inner} for key, inner in value.items()]
        else:
            rows.append({"what": name, "value": value})
    print_rows(rows, ("what", "value"), as_json=False)
