"""Do the function in the broker and Spark agree? Reads both outputs; exit status 1 where they differ.

python examples/edge_and_spark/compare.py [--url http://127.0.0.1:18831]
"""

import argparse
import sys

from millrace.client.http import Http

Verdicts = dict[str, list[str]]


def outputs(url: str, stream: str = "verdicts") -> tuple[Verdicts, Verdicts]:
    """What each made, machine by machine, in order."""
    http = Http(url)
    found: dict[str, Verdicts] = {"edge": {}, "spark": {}}
    for row in http.get(f"/v1/streams/{stream}")["shard_list"]:
        offset, end = 0, 1
        while offset < end:
            path = f"/v1/streams/{stream}/shards/{row['shard']}/messages?from={offset}&limit=5000"
            page = http.call("GET", path, None)
            for message in page["messages"]:
                _, maker, machine = message["topic"].split("/")
                found[maker].setdefault(machine, []).append(message["payload"])
            offset, end = page["next_offset"], page["end_offset"]
    return found["edge"], found["spark"]


def differences(edge: Verdicts, spark: Verdicts) -> list[str]:
    """Order is kept machine by machine at the edge; Spark keeps it within a batch, so it is not compared."""
    found = []
    for machine in sorted(edge.keys() | spark.keys()):
        mine, theirs = sorted(edge.get(machine, [])), sorted(spark.get(machine, []))
        if mine != theirs:
            only = sorted(set(mine) ^ set(theirs))[:1]
            found.append(f"{machine}: {len(mine)} at the edge, {len(theirs)} by Spark, such as {only}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:18831")
    edge, spark = outputs(parser.parse_args().url)
    print(f"edge: {sum(map(len, edge.values()))} verdicts, Spark: {sum(map(len, spark.values()))}")
    found = differences(edge, spark)
    print("\n".join(found) if found else "the same")
    return 1 if found or not edge else 0


if __name__ == "__main__":
    sys.exit(main())
