"""Users, rules and tokens of a real cluster: made at one node, enforced at every other."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.client import CannotConnect, Client, ClientError, Refused
from millrace.client.http import Http
from millrace.client.http_node import HttpError
from millrace.lab.demo.stage import is_whole
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.reasons import Reason
from waiting import pause

TIMEOUT_S = 60.0
ROOT = ("root", "root password")


def cli(*words: str, user: tuple[str, str] | None = ROOT, url: str, stdin: str = "") -> str:
    """The program as an operator calls it; the password comes by the environment."""
    if user is not None:
        url = url.replace("http://", f"http://{user[0]}@")
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", *words, "--url", url],
        check=False,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "MILLRACE_PASSWORD": user[1] if user else ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def run(*words: str, **more: Any) -> str:
    return await asyncio.to_thread(cli, *words, **more)


async def ask(
    node: NodeProcess, method: str, path: str, body: Any = None, user: tuple[str, str] = ROOT
) -> Any:
    url = node.http_url.replace("http://", f"http://{user[0]}@")
    return await asyncio.to_thread(Http(url, password=user[1]).call, method, path, body)


async def status_of(node: NodeProcess, method: str, path: str, **more: Any) -> int:
    try:
        await ask(node, method, path, **more)
    except HttpError as error:
        return error.status
    return 200


def client(node: NodeProcess, user: tuple[str, str] | None, **more: Any) -> Client:
    named = {} if user is None else {"username": user[0], "password": user[1]}
    return Client(node.url, reconnect=False, **named, **more)


async def comes_in(node: NodeProcess, user: tuple[str, str] | None) -> bool:
    try:
        async with client(node, user):
            return True
    except Refused as error:
        assert error.reason in (Reason.BAD_USER_OR_PASSWORD, Reason.NOT_AUTHORIZED)
        return False


async def ended(one: Client) -> None:
    """Until the broker has closed the connection."""

    async def is_over() -> bool:
        try:
            await one.publish("probe", "x")
        except ClientError:
            return True
        return False

    await until_answer(is_over, True, "the connection to end")


@asynccontextmanager
async def guarded(data: Path) -> AsyncIterator[LocalCluster]:
    """Three nodes, the first user made at the first one."""
    async with LocalCluster(3, data) as cluster:
        async with asyncio.timeout(TIMEOUT_S):
            while not all([await is_whole(node, 3) for node in cluster.nodes]):
                await pause()
        add = ("user", "add", ROOT[0], "--role", "admin", "--password-stdin")
        await run(*add, user=None, url=cluster.nodes[0].http_url, stdin=ROOT[1])
        yield cluster


def on_cluster(body: Callable[[LocalCluster], Awaitable[None]], data: Path) -> None:
    async def whole() -> None:
        async with asyncio.timeout(240), guarded(data) as cluster:
            await body(cluster)

    asyncio.run(whole())


def test_users_and_rules_made_at_one_node_hold_at_the_others(tmp_path: Path) -> None:
    """Logins, rights, revoking, passwords, tokens and roles: changed at one node and tried at others."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        ann = ("ann", "one")
        await until_answer(lambda: comes_in(third, None), False, "nobody comes in without a name")
        await run("user", "add", "ann", "--password-stdin", url=first.http_url, stdin="one\n")
        assert await comes_in(second, ann) and await comes_in(third, ann)
        assert not await comes_in(second, ("ann", "two"))

        # A rule, its revocation, and what is delivered meanwhile.
        rule = await ask(second, "POST", "/v1/rules", allow("ann", "all", "news/#"))
        async with client(third, ann) as reader, client(first, ROOT) as writer:
            async with reader.subscribe("news/#", qos=1) as messages:
                await writer.publish("news/a", "1", qos=1)
                assert (await messages.get(TIMEOUT_S)).payload == b"1"
                await run("acl", "remove", "--yes", str(rule["number"]), url=first.http_url)
                await until_answer(lambda: may_read(third, ann), False, "the rule to be revoked")
                await writer.publish("news/a", "2", qos=1)
                await ask(second, "POST", "/v1/rules", allow("ann", "all", "news/#"))
                await until_answer(lambda: may_read(third, ann), True, "the rule to hold again")
                await writer.publish("news/a", "3", qos=1)
                assert (await messages.get(TIMEOUT_S)).payload == b"3", "the second was not for ann"

            # Another password ends the connection at another node.
            await run("user", "passwd", "ann", "--password-stdin", url=second.http_url, stdin="two\n")
            await ended(reader)
        ann = ("ann", "two")
        await until_answer(lambda: comes_in(third, ann), True, "the new password to be known")

        await tokens_and_roles(cluster, ann)

        async with client(third, ann) as reader:
            assert "removed user ann, with 1 rules" in await run(
                "user", "remove", "--yes", "ann", url=first.http_url
            )
            await ended(reader)
        assert not await comes_in(second, ann)

    on_cluster(body, tmp_path)


async def tokens_and_roles(cluster: LocalCluster, ann: tuple[str, str]) -> None:
    first, second, third = cluster.nodes
    scope = ("--allow", "publish:news/only")
    made = json.loads(
        await run("token", "create", "--name", "t", "--user", "ann", *scope, "--json", url=first.http_url)
    )
    secret = ("token", made["token"])
    async with client(third, secret) as one:
        await one.publish("news/only", "x", qos=1)
        with pytest.raises(Refused):
            await one.publish("news/else", "x", qos=1)
        assert made["token"] not in await run("token", "list", url=second.http_url)
        await run("token", "revoke", "--yes", "t", url=second.http_url)
        await ended(one)
    assert not await comes_in(first, secret)

    for path in ("/status", "/metrics", "/v1/cluster", "/v1/writers", "/v1/users", "/v1/rules", "/v1/tokens"):
        assert await status_of(second, "GET", path, user=ann) == 403, path
    await run("user", "role", "ann", "observer", url=first.http_url)
    await until_answer(lambda: status_of(second, "GET", "/v1/cluster", user=ann), 200, "ann to observe")
    stream = {"name": "s", "filters": ["s/#"]}
    assert await status_of(second, "POST", "/v1/streams", body=stream, user=ann) == 403
    await run("user", "role", "ann", "operator", url=first.http_url)
    await until_answer(
        lambda: status_of(second, "POST", "/v1/streams", body=stream, user=ann), 200, "ann to operate"
    )
    assert await status_of(second, "POST", "/v1/users", body={"name": "eve"}, user=ann) == 403
    await run("user", "role", "ann", url=first.http_url)


def allow(user: str, action: str, filter: str) -> dict[str, str]:
    return {"user": user, "effect": "allow", "action": action, "filter": filter}


async def may_read(node: NodeProcess, user: tuple[str, str]) -> bool:
    async with client(node, user) as one:
        try:
            async with one.subscribe("news/probe"):
                return True
        except Refused:
            return False


async def until_answer(ask: Callable[[], Awaitable[object]], wanted: object, what: str) -> None:
    """A change made at another node holds here soon."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while await ask() != wanted:
                await pause()
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None


def test_a_node_that_joins_and_nodes_that_come_back_know_the_users_before_they_serve(tmp_path: Path) -> None:
    """The joiner has no users file and lets nobody in without a name, from its first answer on; after kill -9
    of all nodes the users, rules and tokens are there as before."""

    async def body(cluster: LocalCluster) -> None:
        first = cluster.nodes[0]
        await run("user", "add", "ann", "--password-stdin", url=first.http_url, stdin="one\n")
        await run("acl", "add", "ann", "allow", "publish", "news/#", url=first.http_url)
        made = await ask(first, "POST", "/v1/tokens", {"name": "t", "user": "ann"})

        fourth = cluster.add()
        outcomes: list[bool] = []

        async def knock() -> None:
            """From before its port is open."""
            while len(outcomes) < 20:
                try:
                    outcomes.append(await comes_in(fourth, None))
                except CannotConnect:
                    await pause()

        knocking = asyncio.create_task(knock())
        await fourth.start()
        await knocking
        assert outcomes == [False] * 20
        for user in (("ann", "one"), ("token", made["token"])):
            async with client(fourth, user) as one:
                await one.publish("news/a", "x", qos=1)
                with pytest.raises(Refused):
                    await one.publish("else", "x", qos=1)

        for node in cluster.nodes:
            await node.kill()
        await asyncio.gather(*(node.start() for node in cluster.nodes))
        for node in cluster.nodes:
            assert not await comes_in(node, None)
            assert await comes_in(node, ("ann", "one"))
            assert await comes_in(node, ("token", made["token"]))
        assert [row["filter"] for row in (await ask(fourth, "GET", "/v1/rules"))["items"]] == ["news/#"]

    on_cluster(body, tmp_path)
