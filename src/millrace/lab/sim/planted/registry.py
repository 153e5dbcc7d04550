"""Every bug that can be planted, by the mode of the simulator whose runs must catch it."""

from millrace.lab.sim.planted.bug import Bugs
from millrace.lab.sim.planted.leaderless import LEADERLESS_BUGS
from millrace.lab.sim.planted.nodes import NODE_BUGS
from millrace.lab.sim.planted.pair import PAIR_BUGS
from millrace.lab.sim.planted.raft import RAFT_BUGS
from millrace.lab.sim.planted.routed import ROUTED_BUGS

BUGS: dict[str, Bugs] = {
    "raft": RAFT_BUGS,
    "primary-backup": PAIR_BUGS,
    "leaderless": LEADERLESS_BUGS,
    "routed": ROUTED_BUGS,
    "cluster": NODE_BUGS,
}
