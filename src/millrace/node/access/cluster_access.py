"""Users, rules and tokens of the cluster, brought into force at this node.

They are state of the meta group. A node serves nobody before it has applied all of it that was there when the
node started [rule 31]: `begin` waits for that. From then on every change is enforced in the turn of the event
loop that follows its being applied, at every node.

The users file is how users get into a cluster that never had any, not a second truth: the first node that
starts with one loads it, once. With `access.users_import = "always"` a node loads its file at every start and
on SIGHUP, in place of all users and rules that the cluster has."""

import asyncio
import logging
from collections.abc import Callable

from millrace.broker.access import EVERYBODY, Action, Effect, Role
from millrace.broker.entries.meta import LoadAccess
from millrace.broker.machine import Broker
from millrace.broker.meta.access import AccessState, User
from millrace.errors import ConfigError, LocalError
from millrace.node.access import users
from millrace.node.access.users import Users
from millrace.node.config import Config
from millrace.node.streams.definitions import Definitions

log = logging.getLogger("millrace.access")


class ClusterAccess:
    """`begin` once, before a door opens."""

    def __init__(self, config: Config, definitions: Definitions, broker: Broker) -> None:
        self._config = config
        self._definitions = definitions
        self._broker = broker
        self._version = self._rules_version = -1
        self._is_due = False
        self.on_change: Callable[[AccessState], None] = _nobody_listens
        """Called when users, rules or tokens changed, after the broker got the rules. Set by the node."""

    @property
    def state(self) -> AccessState:
        return self._definitions.state.access

    async def begin(self) -> None:
        """Wait until this node knows the users and rules, or loads the first ones, and enforce them."""
        await self._definitions.caught_up()
        path = self._config.users_path
        if self._config.access.users_import == "always" or not self.state.version:
            await self.load(self.read_file())
        elif path.exists():
            log.info("%s is not read: the cluster has users and rules of its own", path)
        self._definitions.on_change.append(lambda result: self._enforce_soon())
        self._definitions.on_restore.append(self._enforce_soon)
        self._enforce()

    def read_file(self) -> Users:
        """The users file. One that was named must be there, and one that is there must name somebody: a
        mistyped name or an emptied file must not open everything."""
        path = self._config.users_path
        content = users.load(path, missing_ok=not self._config.access.users_file)
        if not content.hashes and not content.rules and path.exists():
            raise ConfigError(
                f"{path} names no user and has no rule, so it would open everything; add a user"
                f" (millrace user add NAME --users {path}) or remove it"
            )
        return content

    async def load(self, content: Users) -> None:
        """Propose what the file says as the users and rules of the cluster."""
        is_always = self._config.access.users_import == "always"
        if not content.hashes and not content.rules and not is_always:
            return
        found = users_from(content)
        try:
            await self._definitions.command(LoadAccess(found, content.rules, only_first=not is_always))
        except LocalError:
            if is_always or not self.state.version:
                raise
            log.info("%s is not read: another node brought users and rules", self._config.users_path)
            return
        counts = f"{len(found)} users, {len(content.rules)} rules"
        log.info(
            "users and access rules loaded from %s into the cluster: %s", self._config.users_path, counts
        )
        if found and not any(user.may_administer for user in found):
            log.warning("no user may administer the cluster: give one the rule allow all '#' in the file")
        if found and not content.rules:
            log.warning(
                "there are users and no rules: nobody may publish or subscribe until a rule allows it"
            )

    # ------------------------------------------------------------------------------------ enforcing

    def _enforce_soon(self) -> None:
        """Not while the meta group applies: connections that end have wills and records to write."""
        if not self._is_due and self.state.version != self._version:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._enforce)

    def _enforce(self) -> None:
        self._is_due = False
        state = self.state
        if state.rules_version != self._rules_version:
            self._rules_version = state.rules_version
            self._broker.reload(state.rules_after(self._broker.rules))
        if state.version != self._version:
            self._version = state.version
            self.on_change(state)


def users_from(content: Users) -> tuple[User, ...]:
    """The users of a file. Who might change streams and groups by the rule "allow all #" is an
    administrator."""
    unlimited = {
        rule.user
        for rule in content.rules
        if rule.effect is Effect.ALLOW and rule.action is Action.ALL and rule.filter == "#"
    }
    return tuple(
        User(
            name=name,
            password_hash=password_hash,
            roles=(Role.ADMIN,) if unlimited & {name, EVERYBODY} else (),
        )
        for name, password_hash in content.hashes.items()
    )


def _nobody_listens(state: AccessState) -> None:
    """No door is open yet."""
