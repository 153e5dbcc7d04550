"""Ports for processes that come and go."""

from millrace.local_cluster import PortBlock


def test_two_who_look_for_ports_at_once_never_get_the_same() -> None:
    blocks = [PortBlock() for _ in range(3)]
    taken = [block.take() for block in blocks for _ in range(2)]
    for block in blocks:
        block.close()
    assert len(set(taken)) == 6
    assert len({port // 100 for port in taken}) == 3
