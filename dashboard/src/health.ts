/** One word and the reasons for the state of the whole cluster, from an overview. Pure. */
import { plural } from "./format";
import type { Overview, ReplicationGroupRow } from "./contract";

export type Level = "good" | "warning" | "bad";

export interface Health {
  level: Level;
  word: string;
  reasons: string[];
}

export function healthOf(overview: Overview): Health {
  const bad: string[] = [];
  const warnings: string[] = [];
  const members = overview.nodes.filter((node) => node.state !== "removed");
  if (overview.leader === null) bad.push("The cluster has no leader");
  for (const node of members) {
    if (node.state === "unreachable") bad.push(`Node ${node.node} is unreachable`);
    else if (node.state === "suspect") warnings.push(`Node ${node.node} is silent`);
    else if (!node.is_answering) warnings.push(`Node ${node.node} does not answer`);
    if (node.figures?.waits_for) warnings.push(`Node ${node.node} waits: ${node.figures.waits_for}`);
    if (node.is_draining) warnings.push(`Node ${node.node} is draining`);
  }
  const leaderless = overview.groups.filter((group) => group.leader === null && group.group !== 0);
  if (leaderless.length > 0) {
    bad.push(
      leaderless.length === 1
        ? `Group ${leaderless[0]?.group} (${leaderless[0]?.keeps}) has no leader`
        : `${plural(leaderless.length, "replication group")} without a leader`,
    );
  }
  for (const stream of overview.streams) {
    if (stream.is_degraded) warnings.push(`Stream ${stream.name}: ${stream.degraded || "degraded"}`);
  }
  if (!overview.is_settled) warnings.push("Replicas are being moved");
  if (bad.length > 0) return { level: "bad", word: "Faults", reasons: [...bad, ...warnings] };
  if (warnings.length > 0) return { level: "warning", word: "Degraded", reasons: warnings };
  return { level: "good", word: "Healthy", reasons: [`${plural(members.length, "node")} up`] };
}

/** The replication groups that keep the shards of a stream. */
export function groupsOf(overview: Overview, stream: string): ReplicationGroupRow[] {
  return overview.groups.filter((group) => group.keeps === `stream ${stream}`);
}

/** How far the replica furthest behind is; null where no group says. */
export function worstLag(groups: readonly ReplicationGroupRow[]): number | null {
  const lags = groups
    .flatMap((group) => group.replicas.map((replica) => replica.lag))
    .filter((lag) => lag !== null);
  return lags.length > 0 ? Math.max(...lags) : null;
}
