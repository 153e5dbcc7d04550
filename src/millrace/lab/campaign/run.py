"""What a campaign is given to work with."""

import argparse
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from millrace.lab.campaign.load import Load, MakeClient, own_client
from millrace.lab.campaign.networks import Networks
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    stage: Stage
    given: argparse.Namespace
    networks: Networks | None
    """Of the nodes, for campaigns that cut them."""
    rng: random.Random
    report: Report
    say: Say

    def load(self, rate: float | None = None, urls: list[str] | None = None) -> Load:
        """The clients that the command line asks for; the caller runs them."""
        given = self.given
        return Load(
            self.stage,
            rate=given.rate if rate is None else rate,
            size=given.size,
            publishers=given.publishers,
            subscribers=given.subscribers,
            urls=urls,
            make_client=self._clients(),
        )

    def _clients(self) -> MakeClient:
        if self.given.clients == "own":
            return own_client
        # It needs Paho, which the package does not.
        from millrace.lab.campaign.foreign import make_foreign

        return make_foreign({node.url: node.http_url for node in self.stage.nodes})


Body = Callable[[Run], Awaitable[None]]
