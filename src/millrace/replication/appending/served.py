"""What a driver asks a machine with one log for every block; `status` is for people and costs as much as a
step."""

from millrace.replication.appending.core import Core
from millrace.replication.contract import Config, ReplicaId
from millrace.types import Index


class ServedLog:
    """The part of `Replica` that a core alone can answer. Whoever derives from it has a core."""

    __slots__ = ("_core",)

    _core: Core

    @property
    def is_serving(self) -> bool:
        return self._core.is_serving

    @property
    def leader(self) -> ReplicaId | None:
        return self._core.leader

    @property
    def rests(self) -> bool:
        return False

    @property
    def config(self) -> Config:
        return self._core.configs.config

    def config_at(self, index: Index) -> Config:
        return self._core.configs.at(index)
