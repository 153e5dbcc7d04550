/** One stream: its settings and shards, and what its way of replicating has to show. */
import { mayOperate, path, post, remove } from "../api";
import { overview } from "../live";
import type { Overview, ShardRow, StreamDetail } from "../contract";
import { bytes, count, duration, perSecond, retention } from "../format";
import { groupsOf } from "../health";
import { Chart } from "../components/chart";
import { ask } from "../components/dialog";
import { useResource } from "../components/resource";
import {
  Back,
  Badge,
  Code,
  Facts,
  Filters,
  Notice,
  PageHead,
  Panel,
  Table,
  type Column,
} from "../components/ui";
import { go, href } from "../router";
import { LeaderlessPanels, PairPanels, RaftPanel, RoutedPanel } from "./replication";
import { ReplicationBadge } from "./streams";

export function StreamPage({ name }: { name: string }) {
  const now = overview.value;
  const found = useResource<StreamDetail>(path(["v1", "streams", name]), 2000);
  const stream = found.value;
  if (stream === null || now === null) {
    return (
      <>
        <Back page="streams">Streams</Back>
        {found.error !== "" ? <Notice tone="bad">{found.error}</Notice> : <p class="empty">Loading.</p>}
      </>
    );
  }
  const row = now.streams.find((one) => one.name === name);
  return (
    <>
      <Back page="streams">Streams</Back>
      <PageHead
        title={
          <>
            {stream.name} <ReplicationBadge replication={stream.replication} />
          </>
        }
        note={<Filters filters={stream.filters} />}
        actions={mayOperate() && <Actions stream={stream} reload={found.reload} />}
      />
      {row?.is_degraded && <Notice tone="warning">{row.degraded || "This stream is degraded."}</Notice>}
      {stream.warnings?.map((warning) => (
        <Notice key={warning} tone="warning">
          {warning}
        </Notice>
      ))}
      <div class="split split-even">
        <Panel title="Messages in">
          <Chart
            label={`Messages per second into ${name}`}
            format={perSecond}
            lines={[{ label: "in", series: `stream/${name}/in` }]}
          />
        </Panel>
        <Panel title="Settings">
          <Settings stream={stream} />
        </Panel>
      </div>
      <Special stream={stream} overview={now} />
      {stream.shard_list.length > 0 && (
        <Panel
          title={stream.replication === "leaderless" ? "Logs" : "Shards"}
          note={`As node ${now.node} has them.`}
        >
          <Table
            label="Shards"
            columns={shardColumns(stream)}
            rows={stream.shard_list}
            keyOf={(shard) => shard.shard}
            empty="It has no shards."
          />
        </Panel>
      )}
    </>
  );
}

function Special({ stream, overview: now }: { stream: StreamDetail; overview: Overview }) {
  switch (stream.replication) {
    case "quorum":
      return <RaftPanel groups={groupsOf(now, stream.name)} />;
    case "primary-backup":
      return <PairPanels stream={stream} groups={groupsOf(now, stream.name)} />;
    case "leaderless":
      return <LeaderlessPanels stream={stream} overview={now} />;
    case "routed":
      return <RoutedPanel overview={now} />;
  }
}

function Settings({ stream }: { stream: StreamDetail }) {
  const isStored = stream.replication !== "routed";
  const rows: [string, preact.ComponentChildren][] = [
    ["Captured", CAPTURE[stream.capture] ?? stream.capture],
  ];
  if (stream.replication === "quorum" || stream.replication === "primary-backup") {
    rows.push(["Shards", count(stream.shards)]);
  }
  if (stream.replication === "quorum") rows.push(["Replicas", count(stream.replicas)]);
  if (isStored) {
    rows.push(["Kept", retention(stream.retention_age_s, stream.retention_bytes)]);
    const hold = stream.hold_age_s > 0 ? duration(stream.hold_age_s) : "as long as others";
    rows.push(["Held for groups", stream.hold_bytes > 0 ? `${hold}, ${bytes(stream.hold_bytes)}` : hold]);
    rows.push(["Compression", stream.compression]);
  }
  if (stream.ack !== undefined) rows.push(["Acknowledged by", ACK[stream.ack] ?? stream.ack]);
  if (stream.storage !== undefined) rows.push(["Storage", stream.storage]);
  if (stream.edge !== "") rows.push(["Edge function", <Code>{stream.edge}</Code>]);
  rows.push(["Generation", count(stream.generation)]);
  return <Facts rows={rows} />;
}

const CAPTURE: Record<string, string> = {
  acknowledged: "QoS 1, QoS 2 and HTTP",
  all: "all messages",
  none: "nothing",
};
const ACK: Record<string, string> = {
  local: "the node that takes it",
  one: "one other node",
  majority: "a majority of the nodes",
  all: "all nodes",
};

function shardColumns(stream: StreamDetail): Column<ShardRow>[] {
  const isLeaderless = stream.replication === "leaderless";
  return [
    {
      name: isLeaderless ? "Log" : "Shard",
      show: (shard) => (
        <>
          {shard.shard} {shard.sealed && <Badge tone="neutral">sealed</Badge>}
        </>
      ),
    },
    ...(isLeaderless ? [{ name: "Origin", show: (shard: ShardRow) => shard.origin ?? "–" }] : []),
    { name: "Role here", show: (shard) => shard.role },
    { name: isLeaderless ? "Incarnation" : "Term", number: true, show: (shard) => count(shard.term) },
    { name: "First offset", number: true, show: (shard) => count(shard.first_offset) },
    { name: "Next offset", number: true, show: (shard) => count(shard.next_offset) },
    { name: "Messages", number: true, show: (shard) => count(shard.next_offset - shard.first_offset) },
    { name: "Size", number: true, show: (shard) => bytes(shard.bytes) },
    {
      name: "Staged",
      number: true,
      minor: true,
      show: (shard) =>
        shard.staged_attempts > 0 ? `${bytes(shard.staged_bytes)} in ${count(shard.staged_attempts)}` : "–",
    },
    {
      name: "Contents",
      show: (shard) => (
        <a href={href("messages", [], { stream: stream.name, shard: shard.shard, from: "latest" })}>Browse</a>
      ),
    },
  ];
}

function Actions({ stream, reload }: { stream: StreamDetail; reload: () => void }) {
  const where = ["v1", "streams", stream.name];
  const isStored = stream.replication === "quorum" || stream.replication === "primary-backup";
  const switchOver = () =>
    ask({
      title: `Switch ${stream.name} over to its backup?`,
      body: (
        <p>Every backup that is in sync becomes primary. Publishers wait for the moment that it takes.</p>
      ),
      verb: "Switch over",
      isHarmless: true,
      act: async () => {
        await post(path([...where, "switch"]));
        reload();
      },
      done: `${stream.name} was switched over`,
    });
  const purge = () =>
    ask({
      title: `Purge stream ${stream.name}?`,
      body: (
        <p>
          All stored messages of this stream are forgotten, in every shard. Offsets go on counting. It cannot
          be undone.
        </p>
      ),
      verb: "Purge",
      act: async () => {
        await post(path([...where, "purge"]));
        reload();
      },
      done: `${stream.name} is purged`,
    });
  const destroy = () =>
    ask({
      title: `Delete stream ${stream.name}?`,
      body: (
        <p>
          The stream goes with everything stored in it. Its topics belong to the stream <Code>default</Code>{" "}
          from then on. It cannot be undone.
        </p>
      ),
      verb: "Delete",
      act: async () => {
        await remove(path(where));
        go(href("streams"));
      },
      done: `${stream.name} is deleted`,
    });
  return (
    <>
      {stream.replication === "primary-backup" && (
        <button type="button" onClick={switchOver}>
          Switch over…
        </button>
      )}
      {isStored && (
        <button type="button" class="danger-quiet" onClick={purge}>
          Purge…
        </button>
      )}
      {stream.name !== "default" && (
        <button type="button" class="danger-quiet" onClick={destroy}>
          Delete…
        </button>
      )}
    </>
  );
}
