"""Write docs/reference/python.md from the docstrings of the public Python names; --check compares."""

import ast
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from generated_page import DOCS, write_or_check

PAGE = DOCS / "reference" / "python.md"
# Module, and the names that are for users of the package.
PUBLIC: dict[str, list[str]] = {
    "millrace": ["Broker"],
    "millrace.client": [
        "Client",
        "Subscription",
        "Message",
        "Publisher",
        "Subscriber",
        "Epochs",
        "ClientError",
        "CannotConnect",
        "ConnectionLost",
        "Closed",
        "Refused",
        "Outdated",
    ],
    "millrace.client.blocking": ["Client", "Subscription"],
    "millrace.testing": ["ThreadedBroker", "millrace_broker"],
}
_INTRODUCTION = """\
# Python

<!-- Written by tools/python_page.py from the docstrings: change those, then run `make reference`. -->

These are the names that programs may use. Everything else in the package may change without notice. The Spark
data source is described in [Spark](spark.md).
"""


def _source(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """The definition of a public name, wherever it is imported from."""
    value: Any = getattr(importlib.import_module(module), name)
    while not inspect.isclass(value) and not inspect.isfunction(value):
        value = value.__wrapped__ if hasattr(value, "__wrapped__") else value._get_wrapped_function()
    tree = ast.parse(Path(inspect.getfile(value)).read_text())
    found = next(node for node in tree.body if getattr(node, "name", None) == value.__name__)
    assert isinstance(found, ast.ClassDef | ast.FunctionDef)
    return found


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """The call as one writes it, without `self`."""
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): pass"))).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    if arguments.args.args and arguments.args.args[0].arg in ("self", "cls"):
        del arguments.args.args[0]
    parts = ast.unparse(arguments.args)
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        call = name
    elif len(name) + len(parts) > 90:
        shown = ",\n    ".join(_split(arguments.args))
        call = f"{name}(\n    {shown},\n)"
    else:
        call = f"{name}({parts})"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{'await ' if isinstance(node, ast.AsyncFunctionDef) else ''}{call}{returned}"


def _split(arguments: ast.arguments) -> list[str]:
    """The arguments of a definition, each as it is written."""
    positional = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(
        arguments.defaults
    )
    pairs = list(zip(positional, defaults, strict=True))
    words = [_argument(one, default) for one, default in pairs]
    if arguments.vararg:
        words.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        words.append("*")
    words += [
        _argument(one, default)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return words + ([f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else [])


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + (f" = {ast.unparse(default)}" if default is not None else "")


def _described(node: ast.AST) -> str:
    text = (
        ast.get_docstring(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        else None
    )
    return f"{text}\n" if text else ""


def _class(module: str, name: str, node: ast.ClassDef) -> str:
    base = ", ".join(ast.unparse(one) for one in node.bases)
    parts = [f"### {module}.{name}\n"]
    constructor = next((one for one in node.body if getattr(one, "name", None) == "__init__"), None)
    if isinstance(constructor, ast.FunctionDef):
        parts.append(f"```python\n{_signature(constructor, name).removesuffix(' -> None')}\n```\n")
    elif base:
        parts.append(f"A subclass of `{base}`.\n")
    parts.append(_described(node))
    fields = [
        ast.unparse(one)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one).startswith("_")
    ]
    if fields:
        parts.append("```python\n" + "\n".join(fields) + "\n```\n")
    for one in node.body:
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) or one.name.startswith("_"):
            continue
        if text := _described(one):
            parts += [f"```python\n{_signature(one, one.name)}\n```\n", text]
    return "\n".join(part for part in parts if part)


def page() -> str:
    parts = [_INTRODUCTION]
    for module, names in PUBLIC.items():
        about = (importlib.import_module(module).__doc__ or "").strip()
        parts.append(f"## {module}\n\n{about}\n")
        for name in names:
            node = _source(module, name)
            if isinstance(node, ast.ClassDef):
                parts.append(_class(module, name, node))
            else:
                parts.append(f"### {module}.{name}\n\n{_described(node)}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
