"""When a durable group goes by itself, when its cursors go with it, and where a reader moves them."""

import asyncio

from msgspec.structs import replace

from millrace.broker.entries.consume import Consume, Create, Touch
from millrace.broker.groups.consumers import Consumers
from millrace.broker.groups.cursor import Cursor, Settings
from millrace.broker.groups.definitions import DurableGroups, DurableGroupSpec
from millrace.node.groups.consumer_groups import GROUP_EXPIRY_US, is_idle
from unit.node.lone_groups import LoneGroups

NOW_US = 10 * GROUP_EXPIRY_US


def asked(age_us: int) -> Cursor:
    return Cursor(0, used_us=NOW_US - age_us)


def test_a_group_is_idle_when_nobody_asked_in_any_shard_for_seven_days() -> None:
    assert is_idle([asked(GROUP_EXPIRY_US + 1), asked(GROUP_EXPIRY_US + 2)], NOW_US)
    assert not is_idle([asked(GROUP_EXPIRY_US + 1), asked(0)], NOW_US)
    assert not is_idle([asked(GROUP_EXPIRY_US)], NOW_US)


def test_a_group_without_a_cursor_was_only_just_made() -> None:
    assert not is_idle([], NOW_US)


def test_asking_an_empty_group_counts() -> None:
    consumers = Consumers()
    consumers.apply(Consume(1, {}, [Create(1, 0, Settings())]), 1)
    consumers.apply(Consume(NOW_US, {}, [Touch(1)]), NOW_US)
    assert not is_idle(list(consumers.cursors.values()), NOW_US + GROUP_EXPIRY_US)


SPEC = DurableGroupSpec(name="g", filters=("t",))


def test_chores_keep_the_cursor_of_a_group_that_this_node_has_not_heard_of() -> None:
    """The meta group of this node is behind: the group was made elsewhere, and is asked there. Without its
    cursor it would begin again, with what was done."""

    async def scene() -> None:
        node = LoneGroups()
        node.cursors[1] = Cursor(0)
        await node.groups._do_chores()
        assert list(node.cursors) == [1]

    asyncio.run(scene())


def test_chores_delete_the_cursor_of_a_group_that_was_deleted() -> None:
    """Also where the definitions came in a snapshot."""

    async def scene() -> None:
        for is_restored in (False, True):
            node = LoneGroups()
            await node.groups.create(SPEC)
            assert list(node.cursors) == [1]
            await node.groups.delete("g")
            if is_restored:
                known = node.meta.groups
                node.meta.groups = DurableGroups(known.by_name.values(), known.next_number)
            await node.groups._do_chores()
            assert not node.cursors

    asyncio.run(scene())


def test_a_group_that_is_made_while_chores_are_done_keeps_its_cursor() -> None:
    """What a pass knew of the groups when it began is old by the time it comes to the cursors."""

    async def scene() -> None:
        node = LoneGroups()
        node.cursors[1] = Cursor(0)
        node.on_meta_asked = lambda: node.meta.groups.put(SPEC, True, {})
        await node.groups._do_chores()
        assert list(node.cursors) == [1]

    asyncio.run(scene())


def test_readers_who_advance_a_group_at_once_never_move_it_back() -> None:
    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(SPEC)
        node.store(b"1", b"2", b"3")
        await asyncio.gather(*(node.groups.advance("g", {16: position}) for position in (2, 1)))
        assert node.cursors[1].position == 2

    asyncio.run(scene())


def test_a_node_that_began_from_a_snapshot_moves_no_group_to_its_own_beginning() -> None:
    """Other nodes have what it does not, and keep it as long as the group is not done with it."""

    async def scene() -> None:
        node = LoneGroups()
        node.store(b"1", b"2", b"3")
        node.shard.group.replica_log.log.first_offset = 3
        await node.groups.create(SPEC, earliest=True)
        assert node.cursors[1].position == 0
        await node.groups.advance("g", {16: 1})
        assert node.cursors[1].position == 1
        await node.groups.reset("g", "earliest")
        assert node.cursors[1].position == 0

    asyncio.run(scene())


def test_a_change_of_settings_keeps_what_came_into_a_shard_opened_since() -> None:
    """Nobody has asked the group there yet, so it has no cursor: it reads such a shard from 0."""

    async def scene() -> None:
        node = LoneGroups()
        del node.shards[16]
        await node.groups.create(SPEC)
        node.shards[16] = node.shard
        node.store(b"1", b"2", b"3")
        await node.groups.alter(replace(SPEC, in_flight_max=5))
        assert [one.message.payload for one in await node.take("g", 10)] == [b"1", b"2", b"3"]

    asyncio.run(scene())


def test_a_group_holds_a_shard_where_nobody_has_asked_it_yet() -> None:
    async def scene() -> None:
        node = LoneGroups()
        del node.shards[16]
        await node.groups.create(SPEC)
        node.shards[16] = node.shard
        assert node.groups.held_from(node.shard) == 0

    asyncio.run(scene())


def test_a_group_without_dead_letters_any_more_is_given_its_dead_messages_again() -> None:
    """A letter that was not republished yet has no topic to go to: not while the shard still calls it dead
    either, which hears of the change a moment after the definitions."""

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(replace(SPEC, deliveries_max=1, dead_letter="dead"))
        node.store(b"1")
        (first,) = await node.take("g", 1, lease_s=10)
        assert await node.groups.settle("g", "nack", [first.receipt], 0) == [True]
        assert list(node.cursors[1].dead) == [0]
        node.meta.groups.put(SPEC, False, {})
        await node.groups._do_chores()
        assert list(node.cursors[1].dead) == [0]
        await node.groups.alter(SPEC)
        assert [one.message.payload for one in await node.take("g")] == [b"1"]
        await node.groups.stop()

    asyncio.run(scene())
