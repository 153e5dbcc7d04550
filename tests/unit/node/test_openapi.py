"""The document of the HTTP API: every operation says what it answers, and its examples are such answers."""

from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from millrace.node import config
from millrace.node.doors.http.app import ROUTERS, make_app
from millrace.node.server import Server

METHODS = {"get", "put", "post", "patch", "delete"}


@pytest.fixture(scope="module")
def app() -> Any:
    return make_app(Server(config.load(None, {}, [])))


def _operations(app: Any) -> list[tuple[str, dict[str, Any]]]:
    paths = app.openapi()["paths"]
    return [
        (f"{method.upper()} {path}", operation)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method in METHODS
    ]


def _is_free(schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """Whether a program that reads this schema learns nothing about the members of the answer."""
    if "$ref" in schema:
        return _is_free(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    if "anyOf" in schema:
        return any(_is_free(one, schemas) for one in schema["anyOf"])
    return not schema.get("properties")


def test_no_operation_answers_with_a_free_object(app: Any) -> None:
    schemas = app.openapi()["components"]["schemas"]
    free = []
    for name, operation in _operations(app):
        for status, answer in operation["responses"].items():
            for kind, content in answer.get("content", {}).items():
                if status.startswith("2") and kind == "application/json":
                    if _is_free(content.get("schema", {}), schemas):
                        free.append(name)
    assert free == []


def test_every_operation_has_a_summary_of_its_own_and_every_answer_an_example(app: Any) -> None:
    without = []
    for name, operation in _operations(app):
        if not operation.get("summary"):
            without.append(f"{name}: no summary")
        for status, answer in operation["responses"].items():
            content = answer.get("content", {}).get("application/json")
            if status.startswith("2") and content is not None and "example" not in content:
                without.append(f"{name}: no example")
    assert without == []


def test_every_member_of_an_answer_is_described(app: Any) -> None:
    """Requests aside: of what the node answers, nobody has to guess what a member means."""
    schemas = app.openapi()["components"]["schemas"]
    seen: set[str] = set()
    missing = []

    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for one in schema:
                walk(one)
        elif isinstance(schema, dict):
            name = schema.get("$ref", "").rsplit("/", 1)[-1]
            if name and name not in seen:
                seen.add(name)
                for member, described in schemas[name].get("properties", {}).items():
                    if not described.get("description"):
                        missing.append(f"{name}.{member}")
                walk(schemas[name])
            for value in schema.values():
                walk(value)

    for _, operation in _operations(app):
        for status, answer in operation["responses"].items():
            if status.startswith("2"):
                walk(answer)
    assert missing == []


def test_the_examples_are_answers() -> None:
    """Each example has the form that its model says."""
    checked = 0
    for route in (route for router in ROUTERS for route in router.routes):
        if not isinstance(route, APIRoute) or route.response_model is None:
            continue
        for answer in route.responses.values():
            example = answer.get("content", {}).get("application/json", {}).get("example")
            if example is not None:
                TypeAdapter(route.response_model).validate_python(example)
                checked += 1
    assert checked > 30


def test_the_document_begins_with_an_introduction_and_names_its_parts(app: Any) -> None:
    document = app.openapi()
    assert "problem documents" in document["info"]["description"]
    described = {tag["name"] for tag in document["tags"]}
    used = {tag for _, operation in _operations(app) for tag in operation.get("tags", ())}
    assert used <= described
