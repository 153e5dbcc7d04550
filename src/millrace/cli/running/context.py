"""`millrace context`: addresses with a name, so that --url is said once."""

from typing import Annotated

import typer

from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    example,
    family,
    print_done,
    print_json,
    print_rows,
)

app = family(
    "Named addresses of clusters. A command talks to --url, else MILLRACE_URL, else the context in use, else "
    "the local cluster that runs, else this machine's default ports."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.command(
    epilog=example(
        "millrace context add prod http://ann@n1.example:18831,http://ann@n2.example:18831",
        "millrace context add lab 10.0.0.7:18831 --use",
    )
)
def add(
    name: Name,
    url: Annotated[
        str,
        typer.Argument(metavar="URL[,URL]", help="HTTP addresses of nodes; MQTT ones may stand beside them."),
    ],
    use: Annotated[
        bool, typer.Option("--use", help="Use it from now on. [default: if it is the first]")
    ] = False,
    json: AsJson = False,
) -> None:
    """Remember addresses under a name. Passwords are better left to MILLRACE_PASSWORD."""
    from millrace.cli.shared.contexts import Contexts, http_urls, parts
    from millrace.client.http import Http

    Http(http_urls(url)).close()
    contexts = Contexts()
    contexts.urls[name] = ",".join(parts(url))
    if use or contexts.current is None:
        contexts.current = name
    contexts.save()
    used = ", and use it" if contexts.current == name else f"; use it with `millrace context use {name}`"
    print_done(f"remember context {name}{used}", as_json=json, name=name, is_current=contexts.current == name)


@app.command(epilog=example("millrace context use prod", "millrace context use --none"))
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the context.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context.")] = False,
    json: AsJson = False,
) -> None:
    """Talk to the nodes of this context from now on."""
    from millrace.cli.shared.contexts import Contexts
    from millrace.errors import ConfigError

    if none is (name is not None):
        raise ConfigError("name a context, or say --none")
    contexts = Contexts()
    if name is not None:
        contexts.url(name)
    contexts.current = name
    contexts.save()
    print_done(f"use context {name}" if name else "use no context", as_json=json, name=name)


@app.command("list", epilog=example("millrace context list"))
def list_(json: AsJson = False) -> None:
    """Show the contexts, and which addresses are in force."""
    import sys

    from millrace.cli.shared.contexts import HTTP_DEFAULT, Contexts, in_force, parts, without_password

    contexts = Contexts()
    rows = [
        {
            "name": name,
            "used": name == contexts.current,
            "url": ",".join(without_password(part) for part in parts(url)),
        }
        for name, url in sorted(contexts.urls.items())
    ]
    urls, source = in_force()
    shown = [without_password(url) for url in urls] or [HTTP_DEFAULT]
    if json:
        print_json({"contexts": rows, "in_force": shown, "source": source or "default"})
        return
    if rows:
        print_rows(rows, ("name", "used", "url"), as_json=False)
    sys.stdout.write(f"in force: {shown[0]}, from {source or 'the defaults'}\n")


@app.command(epilog=example("millrace context remove lab --yes"))
def remove(name: Name, yes: Yes = False, json: AsJson = False) -> None:
    """Forget a context."""
    from millrace.cli.shared.contexts import Contexts

    contexts = Contexts()
    contexts.url(name)
    confirm(f"Forget context {name}?", yes=yes)
    del contexts.urls[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    print_done(f"forgot context {name}", as_json=json, name=name)
