/** All streams: how they are replicated, how fast they fill, and how far their replicas are behind. */
import { overview, figures } from "../live";
import type { StreamDetail, StreamRow } from "../contract";
import { bytes, count, perSecond, plural, retention } from "../format";
import { groupsOf, worstLag } from "../health";
import { useResource } from "../components/resource";
import {
  Badge,
  Filters,
  NodeLinks,
  PageHead,
  Sparkline,
  State,
  Table,
  type Column,
  type Tone,
} from "../components/ui";
import { href } from "../router";

export const REPLICATION_NAMES: Record<string, string> = {
  quorum: "Quorum (Raft)",
  "primary-backup": "Primary-backup",
  leaderless: "Leaderless",
  routed: "Routed",
};

export function ReplicationBadge({ replication }: { replication: string }) {
  const tone: Tone = replication === "quorum" ? "accent" : "neutral";
  return <Badge tone={tone}>{REPLICATION_NAMES[replication] ?? replication}</Badge>;
}

export function StreamsPage() {
  const now = overview.value;
  const details = useResource<{ streams: StreamDetail[] }>("/v1/streams", 5000);
  if (now === null) return <p class="empty">Waiting for the first overview.</p>;
  const kept = new Map(details.value?.streams.map((stream) => [stream.name, stream]));
  const columns: Column<StreamRow>[] = [
    { name: "Stream", show: (stream) => <a href={href("streams", [stream.name])}>{stream.name}</a> },
    {
      name: "State",
      show: (stream) =>
        stream.is_degraded ? (
          <State tone="warning">{stream.degraded || "degraded"}</State>
        ) : (
          <State tone="good">good</State>
        ),
    },
    { name: "Replication", show: (stream) => <ReplicationBadge replication={stream.replication} /> },
    { name: "Topics", show: (stream) => <Filters filters={stream.filters} /> },
    {
      name: "In",
      number: true,
      show: (stream) => (
        <span class="with-spark">
          <Sparkline values={figures.get(`stream/${stream.name}/in`).values} width={64} height={18} />
          {perSecond(stream.in_messages_s)}
        </span>
      ),
    },
    {
      name: "Messages",
      number: true,
      show: (stream) => (stream.replication === "routed" ? "–" : count(stream.messages)),
    },
    {
      name: "Size",
      number: true,
      show: (stream) => (stream.replication === "routed" ? "–" : bytes(stream.bytes)),
    },
    { name: "Replica lag", number: true, show: (stream) => count(worstLag(groupsOf(now, stream.name))) },
    { name: "Leaders", show: (stream) => <NodeLinks nodes={stream.leaders} /> },
    {
      name: "Retention",
      minor: true,
      show: (stream) => {
        const found = kept.get(stream.name);
        if (stream.replication === "routed") return <span class="quiet">stores nothing</span>;
        return found === undefined ? "–" : retention(found.retention_age_s, found.retention_bytes);
      },
    },
  ];
  return (
    <>
      <PageHead
        title="Streams"
        note={`${plural(now.streams.length, "stream")}. Every topic belongs to one of them.`}
      />
      <div class="panel">
        <Table
          label="Streams"
          columns={columns}
          rows={now.streams}
          keyOf={(stream) => stream.name}
          empty="There are no streams."
        />
      </div>
    </>
  );
}
