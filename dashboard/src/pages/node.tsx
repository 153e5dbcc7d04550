/** One node: its figures, its links, what it leads, and taking it out of work. */
import { path, post, remove } from "../api";
import { overview } from "../live";
import { mayOperate } from "../api";
import type { Link, NodeRow } from "../contract";
import { bytes, bytesPerSecond, count, duration, milliseconds, percent, perSecond } from "../format";
import { Chart } from "../components/chart";
import { ask } from "../components/dialog";
import {
  Back,
  Code,
  Facts,
  NodeLink,
  Notice,
  PageHead,
  Panel,
  State,
  Table,
  Tile,
  stateTone,
  type Column,
} from "../components/ui";
import { GROUP_COLUMNS } from "./cluster";
import { go, href } from "../router";

export function NodePage({ name }: { name: string }) {
  const now = overview.value;
  if (now === null) return <p class="empty">Waiting for the first overview.</p>;
  const node = now.nodes.find((row) => row.node === name);
  if (node === undefined) {
    return (
      <>
        <Back page="cluster">Cluster</Back>
        <Notice tone="warning">There is no node {name} in this cluster.</Notice>
      </>
    );
  }
  const groups = now.groups.filter((group) => group.leader === name);
  return (
    <>
      <Back page="cluster">Cluster</Back>
      <PageHead
        title={node.node}
        note={<State tone={stateTone(node.state)}>{node.state}</State>}
        actions={mayOperate() && <Actions node={node} />}
      />
      {node.figures?.waits_for && <Notice tone="warning">It waits: {node.figures.waits_for}</Notice>}
      {node.state !== "up" && (
        <Notice tone="bad">
          Nothing was heard of this node for {duration(node.silent_s)}. The figures below are missing until it
          is back.
        </Notice>
      )}
      <NodeTiles node={node} />
      <div class="split split-even">
        <Panel title="Messages">
          <Chart
            label={`Messages per second at ${name}`}
            format={perSecond}
            lines={[
              { label: "in", series: `node/${name}/in` },
              { label: "out", series: `node/${name}/out` },
            ]}
          />
        </Panel>
        <Panel title="CPU">
          <Chart
            label={`CPU of ${name}`}
            format={percent}
            lines={[{ label: "CPU", series: `node/${name}/cpu` }]}
          />
        </Panel>
      </div>
      <div class="split split-even">
        <Panel title="About">
          <NodeFacts node={node} />
        </Panel>
        <Panel title="Links" note="As this node sees them.">
          <Table
            label="Links"
            columns={LINK_COLUMNS}
            rows={node.figures?.links ?? []}
            keyOf={(link) => link.to}
            empty="It has no links to other nodes."
          />
        </Panel>
      </div>
      <Panel title="Groups it leads">
        <Table
          label="Groups it leads"
          columns={GROUP_COLUMNS}
          rows={groups}
          keyOf={(group) => group.group}
          empty="It leads nothing."
        />
      </Panel>
    </>
  );
}

function NodeTiles({ node }: { node: NodeRow }) {
  const found = node.figures;
  const whole = found === null ? 0 : found.disk_used_bytes + found.disk_free_bytes;
  return (
    <dl class="tiles">
      <Tile
        label="CPU"
        value={percent(found?.cpu_percent)}
        note={`loop lag ${milliseconds(found?.loop_lag_ms)}`}
      />
      <Tile
        label="Memory"
        value={bytes(found?.memory_bytes)}
        note={`retained ${bytes(found?.retained_bytes)}`}
      />
      <Tile
        label="Data on disk"
        value={bytes(found?.disk_used_bytes)}
        note={whole > 0 ? `${bytes(found?.disk_free_bytes)} free` : "–"}
      />
      <Tile label="In" value={perSecond(found?.in_messages_s)} note={bytesPerSecond(found?.in_bytes_s)} />
      <Tile label="Out" value={perSecond(found?.out_messages_s)} note={bytesPerSecond(found?.out_bytes_s)} />
    </dl>
  );
}

function NodeFacts({ node }: { node: NodeRow }) {
  const found = node.figures;
  return (
    <Facts
      rows={[
        ["Leads", `${count(node.leads)} groups${node.leads_meta ? ", the cluster's own among them" : ""}`],
        ["Clients", <a href={href("clients", [], { node: node.node })}>{count(found?.clients)}</a>],
        ["Sessions", count(found?.sessions)],
        ["Subscriptions", count(found?.subscriptions)],
        ["Retained messages", count(found?.retained_messages)],
        ["Messages dropped", count(found?.dropped)],
        ["Uptime", duration(found?.uptime_s)],
        ["Version", found?.version ?? "–"],
        ["MQTT", <Code>{node.addresses.mqtt ?? "–"}</Code>],
        ["HTTP", <Code>{node.addresses.http ?? "–"}</Code>],
        ["Peers", <Code>{node.addresses.peer ?? "–"}</Code>],
        ["Replica", <Code>{node.replica}</Code>],
      ]}
    />
  );
}

const LINK_COLUMNS: Column<Link>[] = [
  { name: "To", show: (link) => <NodeLink node={link.to} /> },
  {
    name: "State",
    show: (link) => <State tone={link.is_up ? "good" : "bad"}>{link.is_up ? "up" : "down"}</State>,
  },
  { name: "Round trip", number: true, show: (link) => milliseconds(link.rtt_ms) },
];

function Actions({ node }: { node: NodeRow }) {
  const where = ["v1", "cluster", "nodes", node.node];
  const drain = () =>
    ask({
      title: node.is_draining ? `Let ${node.node} take part again?` : `Drain ${node.node}?`,
      body: node.is_draining ? (
        <p>Replicas and leaders may be placed on it again.</p>
      ) : (
        <p>
          Every replica and every leader moves to the other nodes. Its clients stay until they are moved or it
          stops.
        </p>
      ),
      verb: node.is_draining ? "Let it take part" : "Drain",
      isHarmless: node.is_draining,
      act: () => post(path([...where, "drain"]), { draining: !node.is_draining }),
      done: node.is_draining ? `${node.node} takes part again` : `${node.node} is draining`,
    });
  const takeOut = () =>
    ask({
      title: `Remove ${node.node} from the cluster?`,
      body: (
        <p>
          It is no member afterwards, whether it is up or gone. What only it has is lost. It cannot be undone.
        </p>
      ),
      verb: "Remove",
      act: async () => {
        await remove(path(where));
        go(href("cluster"));
      },
      done: `${node.node} is removed`,
    });
  return (
    <>
      <button type="button" onClick={drain}>
        {node.is_draining ? "Stop draining" : "Drain…"}
      </button>
      <button type="button" class="danger-quiet" onClick={takeOut}>
        Remove…
      </button>
    </>
  );
}
