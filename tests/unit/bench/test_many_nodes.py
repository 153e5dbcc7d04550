"""What clusters of many nodes cost is measured with machines that know each other whole."""

from millrace.lab.bench.many_nodes import measure


def test_a_join_brings_what_all_others_want_and_its_size_follows_the_subscriptions() -> None:
    """`measure` itself fails where a topic is not wanted by exactly the node that has its subscriber."""
    few, many = measure(4, 4_000), measure(4, 40_000)
    assert 8 * few.join_mib < many.join_mib < 12 * few.join_mib
    assert many.idle_bytes_a_second > 0 and many.new_topic_us > 0
