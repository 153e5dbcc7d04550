"""Bugs of what stands around a leaderless machine, planted by name (see `planted/bug.py`)."""

from millrace.lab.sim.leaderless.origin_disk import OriginDisk
from millrace.lab.sim.planted.bug import Bugs, Plant

DRIVER_BUGS = Bugs()


@DRIVER_BUGS.bug("a start goes on with an origin whose log is not whole")
def incarnation_reused(plant: Plant) -> None:
    def start(self: OriginDisk) -> None:
        self.incarnation = self.incarnation or 1
        self.is_whole = True

    plant.instead(OriginDisk, "start", start)
