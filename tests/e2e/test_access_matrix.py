"""The access matrix: every path by which something guarded could come through, against everybody who might
try. Nothing leaks, and whoever may, can.

Two real nodes serve all tries of the module. Rights are given and taken at the first one.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.access_paths import PATHS, ROLES, Driver
from e2e.access_stolen import THEFTS
from e2e.access_world import EDGE_FUNCTION, EDGE_MODULE, Cell, World, guarded_cluster

_TRY_S = 60.0
CASES = ("allow", "deny", "revoke while connected", "other user", "other node")
_LESS = {"observer": (), "operator": ("observer",), "admin": ("operator",)}


class Stage:
    """The cluster, on an event loop of its own."""

    def __init__(self, data: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._cluster = guarded_cluster(data)
        self.world: World = self.run(self._cluster.__aenter__())

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(_TRY_S):
                return await what

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    def close(self) -> None:
        self.run(self._cluster.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    modules = tmp_path_factory.mktemp("modules")
    (modules / f"{EDGE_MODULE}.py").write_text(EDGE_FUNCTION)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{modules}:{before}" if before else str(modules)
    try:
        stage = Stage(tmp_path_factory.mktemp("matrix"))
    finally:
        os.environ["PYTHONPATH"] = before
    yield stage
    stage.close()


async def tried(driver: Driver, cell: Cell) -> bool:
    begun = await driver.begin(cell)
    return begun is not None and await driver.finish(cell, begun)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PATHS)
def test_paths_of_messages(stage: Stage, name: str, case: str) -> None:
    """Rights by rules: `other user` is one who has a home of its own and tries that of another."""
    driver, world = PATHS[name], stage.world
    number = next(world.numbers)

    async def body() -> None:
        cell = Cell(world=world, base=f"{driver.prefix}/{number}")
        match case:
            case "allow":
                await world.put_rule("ann", driver.right, cell.filter)
                assert await tried(driver, cell)
            case "deny":
                other = "publish" if driver.right == "subscribe" else "subscribe"
                await world.put_rule("bob", other, cell.filter)
                cell.user, cell.comes = "bob", False
                assert not await tried(driver, cell)
            case "revoke while connected":
                rule = await world.put_rule("ann", driver.right, cell.filter)
                cell.comes = False
                begun = await driver.begin(cell)
                assert begun is not None
                await world.take_rule(rule)
                assert not await driver.finish(cell, begun)
            case "other user":
                cell.base, cell.user, cell.comes = f"{driver.prefix}/home/ann/{number}", "eve", False
                assert not await tried(driver, cell)
            case "other node":
                cell.node = 1
                await world.put_rule("ann", driver.right, cell.filter)
                assert await tried(driver, cell)
                cell = Cell(world=world, base=f"{driver.prefix}/{next(world.numbers)}", node=1)
                cell.user, cell.comes = "bob", False
                assert not await tried(driver, cell)
        world.close()

    stage.run(body())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ROLES)
def test_paths_of_administration(stage: Stage, name: str, case: str) -> None:
    """Rights by roles: `other user` is one who has the next smaller role."""
    driver, world = ROLES[name], stage.world
    role: str = driver.role  # type: ignore[attr-defined]
    number = next(world.numbers)

    async def body() -> None:
        cell = Cell(world=world, base=f"m/{number}", node=int(case == "other node"))
        try:
            match case:
                case "allow" | "other node":
                    await world.set_roles("ann", role)
                    assert await tried(driver, cell)
                case "deny":
                    cell.comes = False
                    assert not await tried(driver, cell)
                case "revoke while connected":
                    await world.set_roles("ann", role)
                    cell.comes = False
                    begun = await driver.begin(cell)
                    assert begun is not None
                    await world.set_roles("ann")
                    assert not await driver.finish(cell, begun)
                case "other user":
                    await world.set_roles("eve", *_LESS[role])
                    cell.user, cell.comes = "eve", False
                    assert not await tried(driver, cell)
        finally:
            await world.set_roles("ann")
            await world.set_roles("eve")
            world.close()

    stage.run(body())


@pytest.mark.parametrize("name", THEFTS)
def test_what_belongs_to_another_user(stage: Stage, name: str) -> None:
    """Both may publish and subscribe; what one made is not the other's all the same."""
    world = stage.world

    async def body() -> None:
        cell = Cell(world=world, base=f"m/{next(world.numbers)}", comes=False)
        for user in ("ann", "eve"):
            await world.put_rule(user, "all", cell.filter)
        assert not await THEFTS[name](cell)
        world.close()

    stage.run(body())
