"""The two trees over topic levels, against a matcher that is too simple to be wrong."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.broker.topics import subscription_index
from millrace.broker.topics.subscription_index import Holder, Node, SubscriptionIndex
from millrace.broker.topics.trees import TopicTree, split_share
from millrace.types import Subscription

LEVELS = ("a", "b", "", "$s", "ü")

levels = st.sampled_from(LEVELS)
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(levels | st.just("+"), min_size=0, max_size=4))
    if draw(st.booleans()):
        chosen = [*chosen, "#"]
    return "/".join(chosen) or "#"


def takes(filter: str, topic: str) -> bool:
    """Section 4.7, read aloud."""
    if topic.startswith("$") and filter[0] in "+#":
        return False
    wanted, given_levels = filter.split("/"), topic.split("/")
    while wanted:
        head = wanted.pop(0)
        if head == "#":
            return True
        if not given_levels or head not in ("+", given_levels.pop(0)):
            return False
    return not given_levels


class TestSubscriptionIndex:
    @settings(max_examples=120, deadline=None)
    @given(st.lists(filters(), max_size=12), st.lists(topics, min_size=1, max_size=6))
    def test_finds_the_filters_that_take_a_topic_each_once(
        self, given_filters: list[str], given_topics: list[str]
    ) -> None:
        tree: SubscriptionIndex[str, str] = SubscriptionIndex()
        for filter in given_filters:
            tree.node(filter).groups = {filter: filter}
        for topic in given_topics:
            hits = [hit for hit in tree.match(topic) if isinstance(hit, Node)]
            found = sorted(name for node in hits for name in node.groups or ())
            assert found == sorted(f for f in set(given_filters) if takes(f, topic))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(st.booleans(), filters()), max_size=30), topics)
    def test_nothing_is_left_of_what_was_taken_out(self, steps: list[tuple[bool, str]], topic: str) -> None:
        """Filters come and go; the index answers for those that are there and holds nodes for them only."""
        tree: SubscriptionIndex[str, str] = SubscriptionIndex()
        present: set[str] = set()
        for add, filter in steps:
            if add:
                present.add(filter)
                tree.node(filter).groups = {"g": filter}
            elif filter in present:
                present.remove(filter)
                node = tree.find(filter)
                assert isinstance(node, Node)
                node.groups = None
                tree.prune(filter)
            assert (tree.find(filter) is not None) == (filter in present)
        hits = [hit for hit in tree.match(topic) if isinstance(hit, Node)]
        assert sorted(n.groups["g"] for n in hits if n.groups) == sorted(
            f for f in present if takes(f, topic)
        )
        for filter in present:
            node = tree.find(filter)
            assert isinstance(node, Node)
            node.groups = None
            tree.prune(filter)
        assert not tree

    @pytest.mark.parametrize("shapes_max", [0, 2, 32])
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.booleans(), filters(), st.sampled_from("xyz")), max_size=40), topics)
    def test_subscribers_come_and_go(
        self, monkeypatch: pytest.MonkeyPatch, shapes_max: int, steps: list[tuple[bool, str, str]], topic: str
    ) -> None:
        """Whether a filter is in the table, has a node or is a path: who is there is found, once for each."""
        monkeypatch.setattr(subscription_index, "_SHAPES_MAX", shapes_max)
        index: SubscriptionIndex[str, str] = SubscriptionIndex()
        present: set[tuple[str, str]] = set()
        for is_added, filter, name in steps:
            if is_added:
                is_new = index.add(filter, Holder(name, Subscription(filter=filter)))
                assert is_new == ((filter, name) not in present)
                present.add((filter, name))
            elif (filter, name) in present:
                index.remove((filter,), name)
                present.remove((filter, name))
            found: list[str] = []
            for hit in index.match(topic):
                found += [hit.subscriber] if isinstance(hit, Holder) else hit.subscribers
            assert sorted(found) == sorted(name for filter, name in present if takes(filter, topic))
        for filter, name in present:
            index.remove((filter,), name)
        assert not index

    def test_looking_makes_no_nodes(self) -> None:
        tree: SubscriptionIndex[str, str] = SubscriptionIndex()
        assert tree.find("a/b") is None
        assert tree.match("a/b") == []
        tree.prune("a/b")
        assert tree.find("a/+") is None
        tree.prune("a/+")
        assert not tree


class TestTopicTree:
    @settings(max_examples=120, deadline=None)
    @given(st.dictionaries(topics, st.integers(), max_size=15), filters())
    def test_finds_the_topics_that_a_filter_takes_each_once(
        self, values: dict[str, int], filter: str
    ) -> None:
        tree: TopicTree[int] = TopicTree()
        for topic, value in values.items():
            tree.set(topic, value)
        found = list(tree.match(filter))
        assert len(found) == len(dict(found))
        assert dict(found) == {topic: value for topic, value in values.items() if takes(filter, topic)}

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(["set", "pop", "get"]), topics, st.integers()), max_size=40))
    def test_holds_what_a_dict_would_hold(self, steps: list[tuple[str, str, int]]) -> None:
        tree: TopicTree[int] = TopicTree()
        model: dict[str, int] = {}
        for action, topic, value in steps:
            if action == "set":
                assert tree.set(topic, value) == model.get(topic)
                model[topic] = value
            elif action == "pop":
                assert tree.pop(topic) == model.pop(topic, None)
            else:
                assert tree.get(topic) == model.get(topic)
            assert tree.count == len(model)
        for topic in list(model):
            tree.pop(topic)
        assert tree.count == 0 and not tree._root.children

    def test_clear_forgets_everything(self) -> None:
        tree: TopicTree[int] = TopicTree()
        tree.set("a/b", 1)
        tree.clear()
        assert (tree.count, tree.get("a/b"), list(tree.match("#"))) == (0, None, [])

    def test_as_many_levels_as_the_limit_allows_do_not_exhaust_the_stack(self) -> None:
        """limits.topic_levels_max may be set to 32,768."""
        deep = "/".join("a" * 32_768)
        tree: TopicTree[int] = TopicTree()
        tree.set(deep, 1)
        assert [value for _, value in tree.match(deep)] == [1]
        assert [value for _, value in tree.match(deep.replace("a", "+"))] == [1]
        assert tree.pop(deep) == 1 and not tree._root.children


def test_a_shared_filter_is_split_into_name_and_filter() -> None:
    assert split_share("$share/workers/a/+/b") == ("workers", "a/+/b")
    assert split_share("$share/workers//") == ("workers", "/")
    assert split_share("a/$share/b") == ("", "a/$share/b")
    assert split_share("$SYS/a") == ("", "$SYS/a")
