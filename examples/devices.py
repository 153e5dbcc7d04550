"""Simulated devices for the pipelines beside this file.

python examples/devices.py [--url mqtt://127.0.0.1:1883] [--devices 20] [--rate 2] [--seconds 60] [--hot 0]
"""

import argparse
import asyncio

from millrace.client import Client
from millrace.lab.demo.devices import Fleet, Habits


async def publish(given: argparse.Namespace) -> Fleet:
    fleet = Fleet(
        given.devices, Habits(rate_hz=given.rate, hot=given.hot, bad=given.bad, repeat=given.repeat)
    )
    async with Client(given.url.split(","), client_id="devices") as client:
        asyncio.get_running_loop().call_later(given.seconds, fleet.stop)
        await fleet.run([client])
    return fleet


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish readings of simulated devices.")
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="nodes, comma separated")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2.0, help="readings of a device in a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hot", type=int, default=0, help="devices that overheat every other half minute")
    parser.add_argument("--bad", type=float, default=0.01, help="share of messages that are no reading")
    parser.add_argument("--repeat", type=float, default=0.02, help="share of readings that are sent twice")
    fleet = asyncio.run(publish(parser.parse_args()))
    print(f"{len(fleet.acknowledged)} readings, {fleet.repeated} sent twice, {fleet.bad} bad ones")


if __name__ == "__main__":
    main()
