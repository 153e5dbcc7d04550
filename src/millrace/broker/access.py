"""Who may publish and subscribe where.

`AccessRules` is one immutable generation of the rules. A connection asks it once for its `Principal`, and
a principal is what routes and caches hold: two clients for which the rules resolve to the same list get the
same object, so that one cached route serves them all. A reload makes a successor with the next generation
and new principals; a cache keyed by (generation, principal) never serves an old answer.

Order: the rules of the user (or of `anonymous`), then those of `*`, which is everybody; the first rule that
matches decides; an administrator may do what none of these denies. Where no rule matches, the answer is yes
if there are neither rules nor users and no otherwise.
Three things hold beside the rules: `$SYS/#` may be subscribed to unless a rule denies it; what comes below
`$SYS/pipelines` is for users with a role, unless a rule says otherwise; and no client publishes to a topic
that begins with `$` (MQTT 5, 4.7.2), whatever a rule says.

Subscribing concerns sets of topics. A filter is granted when one allow rule covers all of it and no deny
rule before that one overlaps it: a granted filter is granted whole, a refused one is refused aloud.
`may_receive` asks again for each concrete topic when a route is resolved, which is what stops a
subscription made before a reload.

`%u` and `%c` stand for the user name and the client id, as text inside one level. A name is the client's
choice, so it must never act as a pattern or reach another level: with `/`, `+` or `#` in it (or a `$` that
would come to stand first) the rule matches no topic at all, and the same for `%u` without a user.

A token may have a scope: allow rules of its own. Whoever comes with it may do what both the user's rules and
the scope allow.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from weakref import WeakValueDictionary

from millrace.broker.topics.filters import is_valid, levels_cover, levels_match, levels_overlap
from millrace.errors import ConfigError
from millrace.limits import ACCESS_RULES_MAX

EVERYBODY = "*"
ANONYMOUS = "anonymous"

_PLACEHOLDER = re.compile("%[uc]")


class Effect(Enum):
    ALLOW = "allow"
    DENY = "deny"


class Action(Enum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ALL = "all"


class Role(Enum):
    """What a user may do beside publishing and subscribing. Each role includes those after it."""

    ADMIN = "admin"
    """Everything, users and rules among it."""
    OPERATOR = "operator"
    """Streams, groups, nodes, sessions and pipelines."""
    OBSERVER = "observer"
    """Reads status, metrics and lists."""

    def includes(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) <= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line: `user` is a name, `*` or `anonymous`; `filter` may hold %u and %c."""

    user: str
    effect: Effect
    action: Action
    filter: str

    def __post_init__(self) -> None:
        if not is_valid(_PLACEHOLDER.sub("x", self.filter)):
            raise ConfigError(
                f"{self.filter!r} is not a topic filter: '#' must be the last level, and '+' and '#' must be "
                "alone in their level"
            )
        if self.filter.startswith("$share/"):
            raise ConfigError(f"{self.filter!r}: a rule names the inner filter, without $share/NAME/")


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A rule with its names filled in, split into levels."""

    allow: bool
    publish: bool
    subscribe: bool
    levels: tuple[str, ...]
    is_partial: bool = False
    """What it denies is left out of what a wider filter gets, which is granted all the same."""

    def refuses(self, levels: list[str]) -> bool:
        if self.is_partial:
            return levels_cover(self.levels, levels)
        return levels_overlap(self.levels, levels)


_SYS = _Resolved(allow=True, publish=False, subscribe=True, levels=("$SYS", "#"))
# Reports of pipelines name tables, places and errors.
_NO_REPORTS = _Resolved(
    allow=False, publish=False, subscribe=True, levels=("$SYS", "pipelines", "#"), is_partial=True
)
_EVERYTHING = _Resolved(allow=True, publish=True, subscribe=True, levels=("#",))

Scope = tuple[Rule, ...] | None
"""What a token is limited to; None where it may do what its user may."""


class Principal:
    """What one or many clients may do. Compared by identity: equal rules give the same object.

    `unrestricted` says that there are no rules: every filter may be subscribed to and every topic received,
    and a publish needs only `may_publish`, which still refuses `$` topics. With a `scope` both must agree.
    """

    __slots__ = ("__weakref__", "_publish", "_scope", "_subscribe", "generation", "unrestricted")

    def __init__(
        self,
        resolved: tuple[_Resolved, ...],
        *,
        unrestricted: bool,
        generation: int,
        scope: "Principal | None" = None,
    ) -> None:
        self.unrestricted = unrestricted and scope is None
        self.generation = generation
        self._publish = tuple(rule for rule in resolved if rule.publish)
        self._subscribe = tuple(rule for rule in resolved if rule.subscribe)
        self._scope = scope

    def may_publish(self, topic: str) -> bool:
        """Whether a client may publish to this topic, as a message, a retained message or a will."""
        if topic.startswith("$"):
            return False
        if self._scope is not None and not self._scope.may_publish(topic):
            return False
        return self.unrestricted or _decide(self._publish, topic)

    def may_subscribe(self, filter: str) -> bool:
        """Whether this filter is granted; for a shared subscription the caller passes the inner filter."""
        if self.unrestricted:
            return True
        if self._scope is not None and not self._scope.may_subscribe(filter):
            return False
        return _covers_all(self._subscribe, filter)

    def may_publish_all(self, filter: str) -> bool:
        """Whether every topic of this filter may be published to."""
        if self._scope is not None and not self._scope.may_publish_all(filter):
            return False
        return not filter.startswith("$") and (self.unrestricted or _covers_all(self._publish, filter))

    @property
    def has_rights(self) -> bool:
        """Whether any topic may be published or subscribed to, apart from `$SYS`."""
        rules = (*self._publish, *self._subscribe)
        return self.unrestricted or any(rule.allow and rule is not _SYS for rule in rules)

    def may_receive(self, topic: str) -> bool:
        """Whether a message of this topic may be delivered."""
        if self._scope is not None and not self._scope.may_receive(topic):
            return False
        return self.unrestricted or _decide(self._subscribe, topic)


def _decide(rules: tuple[_Resolved, ...], topic: str) -> bool:
    levels = topic.split("/")
    for rule in rules:
        if levels_match(rule.levels, levels):
            return rule.allow
    return False


def _covers_all(rules: tuple[_Resolved, ...], filter: str) -> bool:
    levels = filter.split("/")
    for rule in rules:
        if rule.allow:
            if levels_cover(rule.levels, levels):
                return True
        elif rule.refuses(levels):
            return False
    return False


class AccessRules:
    """One generation of all rules, in their order.

    `has_users` closes the broker: what no rule allows is denied, also where there is no rule at all. What the
    rules leave open is allowed to `admins`. `observers` have a role, whichever.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        generation: int = 1,
        has_users: bool = False,
        admins: Iterable[str] = (),
        observers: Iterable[str] = (),
        reserved: str = "",
    ) -> None:
        """`reserved`: a topic below which no client publishes."""
        self._reserved = reserved
        self._reserved_levels = (*reserved.split("/"), "#")
        self.rules = tuple(rules)
        if len(self.rules) > ACCESS_RULES_MAX:
            raise ConfigError(f"{len(self.rules)} access rules, the most is {ACCESS_RULES_MAX}")
        self.generation = generation
        self._is_open = not self.rules and not has_users
        self._admins, self._observers = frozenset(admins), frozenset(observers)
        by_user: dict[str, list[Rule]] = {}
        for rule in self.rules:
            by_user.setdefault(rule.user, []).append(rule)
        self._everybody = tuple(by_user.pop(EVERYBODY, ()))
        self._anonymous = tuple(by_user.pop(ANONYMOUS, ()))
        self._users = {user: tuple(own) for user, own in by_user.items()}
        # Found once: a connect whose principal is known must not walk the rules.
        self._by_client = frozenset(rule.user for rule in self.rules if "%c" in rule.filter)
        # Weak: a principal lives as long as a connection or a cached route holds it, which bounds these.
        self._by_name: WeakValueDictionary[tuple[str | None, str | None], Principal] = WeakValueDictionary()
        self._by_rules: WeakValueDictionary[
            tuple[tuple[_Resolved, ...], tuple[_Resolved, ...] | None], Principal
        ] = WeakValueDictionary()

    def successor(
        self,
        rules: Iterable[Rule],
        *,
        has_users: bool = False,
        admins: Iterable[str] = (),
        observers: Iterable[str] = (),
    ) -> "AccessRules":
        """The next generation, after a change."""
        return AccessRules(
            rules,
            generation=self.generation + 1,
            has_users=has_users,
            admins=admins,
            observers=observers,
            reserved=self._reserved,
        )

    @property
    def allows_anonymous(self) -> bool:
        """Whether a rule for anonymous clients allows anything."""
        return any(rule.effect is Effect.ALLOW for rule in self._anonymous)

    def reserves(self, filter: str) -> bool:
        """Whether the filter, or topic, has to do with what no client may publish."""
        return bool(self._reserved) and levels_overlap(self._reserved_levels, filter.split("/"))

    def principal(
        self, username: str | None, client_id: str, scope: Scope = None, granted: tuple[Rule, ...] = ()
    ) -> Principal:
        """The principal of a client whose user name has been verified, or is None for anonymous.

        The client id is the one in force, after the broker assigned one where it was empty. `scope` is that
        of the token by which the client came; `granted` are rules that its login brought along, which are
        tried after those of the user.
        """
        if scope is not None or granted:
            within = None if scope is None else _resolve_all(scope, username, client_id)
            return self._intern(self._resolved(username, client_id, granted), within)
        own = self._anonymous if username is None else self._users.get(username, ())
        user = ANONYMOUS if username is None else username
        by_client = EVERYBODY in self._by_client or (bool(own) and user in self._by_client)
        name = (username, client_id if by_client else None)
        principal = self._by_name.get(name)
        if principal is None:
            principal = self._by_name[name] = self._intern(self._resolved(username, client_id), None)
        return principal

    def _resolved(
        self, username: str | None, client_id: str, granted: tuple[Rule, ...] = ()
    ) -> tuple[_Resolved, ...]:
        own = self._anonymous if username is None else self._users.get(username, ())
        last: tuple[_Resolved, ...] = (_NO_REPORTS, _SYS)
        if username in self._admins:
            last = (_EVERYTHING, _SYS)
        elif username in self._observers or self._is_open:
            last = (_SYS,)
        first: tuple[_Resolved, ...] = ()
        if self._reserved:
            first = (_Resolved(allow=False, publish=True, subscribe=False, levels=self._reserved_levels),)
        return (*first, *_resolve_all((*own, *granted, *self._everybody), username, client_id), *last)

    def _intern(self, resolved: tuple[_Resolved, ...], scope: tuple[_Resolved, ...] | None) -> Principal:
        principal = self._by_rules.get((resolved, scope))
        if principal is None:
            within = None
            if scope is not None:
                within = Principal(scope, unrestricted=False, generation=self.generation)
            principal = Principal(
                resolved, unrestricted=self._is_open, generation=self.generation, scope=within
            )
            self._by_rules[resolved, scope] = principal
        return principal


def _resolve_all(rules: Iterable[Rule], username: str | None, client_id: str) -> tuple[_Resolved, ...]:
    every = (_resolve(rule, username, client_id) for rule in rules)
    return tuple(resolved for resolved in every if resolved is not None)


def _resolve(rule: Rule, username: str | None, client_id: str) -> _Resolved | None:
    """The rule for this client, or None where it can match no topic."""
    names = {"%u": username, "%c": client_id}
    used = {names[found] for found in _PLACEHOLDER.findall(rule.filter)}
    for name in used:
        if name is None or not name or any(character in name for character in "/+#\0"):
            return None
    # One pass, so that a placeholder inside a name stays text.
    filter = _PLACEHOLDER.sub(lambda found: names[found.group()] or "", rule.filter)
    if filter.startswith("$") and not rule.filter.startswith("$"):
        return None
    return _Resolved(
        allow=rule.effect is Effect.ALLOW,
        publish=rule.action is not Action.SUBSCRIBE,
        subscribe=rule.action is not Action.PUBLISH,
        levels=tuple(filter.split("/")),
    )
