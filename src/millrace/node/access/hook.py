"""The authentication hook: a Python function of the operator's own that says who somebody is.

It is named in this node's configuration (`access.hook = "module:function"`) and runs in processes of its own,
as edge functions do: the event loop never waits for it, and a call that takes too long costs its process. It
is called with one argument, a dictionary: `user`, `password` (bytes), `client_id`, `address`, `door`. It may
return

- None: it has no opinion, and the login is decided as without a hook
- False: refused
- True: the user is who it claims to be
- a dictionary: `user`, and optionally `rules` (such as "subscribe:home/%u/#") and `roles`

A hook that raises or takes too long refuses the login: whoever cannot be checked does not come in.
"""

import asyncio
import logging
import re
from typing import Any

import msgspec

from millrace.broker.access import Role
from millrace.broker.meta.access import check_name
from millrace.errors import ConfigError, LocalError
from millrace.limits import HOOK_CALLS_MAX
from millrace.node.access.identity import Identity, Proof
from millrace.node.access.jwt import granted_rule
from millrace.node.config import Access
from millrace.node.edge.functions import EdgeFunctions

log = logging.getLogger("millrace.access")

_CALL = "millrace.node.access.hook_call"
_WORKERS = 2
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class HookBusy(LocalError):
    """So many calls wait that this one was not made."""


class Hook:
    def __init__(self, function: str, timeout_s: float) -> None:
        self._function = function
        self._processes = EdgeFunctions(_CALL, _WORKERS, timeout_s)
        self._timeout_s = timeout_s
        self._calls = 0

    @staticmethod
    def of(settings: Access) -> "Hook | None":
        """ConfigError for what cannot be the name of a function."""
        if settings.hook and not _FUNCTION.fullmatch(settings.hook):
            raise ConfigError(f"access.hook = {settings.hook!r}: expected module:function")
        return Hook(settings.hook, settings.hook_timeout_ms / 1000) if settings.hook else None

    async def ask(self, **login: Any) -> Identity | bool | None:
        """What the hook says: who it is, False for a refusal, None for no opinion."""
        if self._calls >= HOOK_CALLS_MAX:
            raise HookBusy("too many logins wait to be checked; try again")
        self._calls += 1
        try:
            # The time in the queue counts: whoever waits for a login does not wait for ever.
            async with asyncio.timeout(2 * self._timeout_s):
                rows = await self._processes.run(
                    f"{_CALL}:call", self._function, msgspec.msgpack.encode(login)
                )
            return _answer(msgspec.msgpack.decode(rows[0][1]), login.get("user"))
        except (LocalError, TimeoutError, msgspec.DecodeError, ValueError) as error:
            log.error("the authentication hook %s failed, the login is refused: %s", self._function, error)
            return False
        finally:
            self._calls -= 1

    async def stop(self) -> None:
        await self._processes.stop()


def _answer(said: Any, user: str | None) -> Identity | bool | None:
    if said is None or said is False:
        return said if said is None else False
    if said is True:
        said = {"user": user}
    if not isinstance(said, dict) or not isinstance(said.get("user"), str):
        raise ValueError("it returns None, False, True or a dictionary with a user")
    check_name(said["user"])
    known = {role.value: role for role in Role}
    return Identity(
        username=said["user"],
        proof=Proof.HOOK,
        granted_rules=tuple(granted_rule(str(text)) for text in said.get("rules", ())),
        granted_roles=tuple(known[str(name)] for name in said.get("roles", ())),
    )
