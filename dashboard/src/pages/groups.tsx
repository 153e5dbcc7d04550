/** Durable consumer groups: who shares the work, how far they are, and beginning anew. */
import { useRef } from "preact/hooks";
import { mayOperate, path, post, remove } from "../api";
import type { GroupDetail, GroupRow, GroupShard } from "../contract";
import { count, isFar, plural } from "../format";
import { ask } from "../components/dialog";
import { useResource } from "../components/resource";
import {
  Back,
  Code,
  Facts,
  Filters,
  NodeLinks,
  Notice,
  PageHead,
  Panel,
  Table,
  Tile,
  type Column,
} from "../components/ui";
import { go, href } from "../router";

const COLUMNS: Column<GroupRow>[] = [
  {
    name: "Group",
    show: (group) => (
      <a class="id" href={href("groups", [group.name])}>
        {group.name}
      </a>
    ),
  },
  { name: "Topics", show: (group) => <Filters filters={group.filters} /> },
  {
    name: "Lag",
    number: true,
    show: (group) => <span class={isFar(group.lag) ? "lag" : ""}>{count(group.lag)}</span>,
  },
  {
    name: "In flight",
    number: true,
    show: (group) => `${count(group.in_flight)} of ${count(group.in_flight_max)}`,
  },
  {
    name: "Deliveries at most",
    number: true,
    extra: true,
    show: (group) => (group.deliveries_max === 0 ? "any" : count(group.deliveries_max)),
  },
  {
    name: "Dead letters to",
    minor: true,
    show: (group) =>
      group.dead_letter === "" ? <span class="quiet">nowhere</span> : <Code>{group.dead_letter}</Code>,
  },
];

export function GroupsPage() {
  const found = useResource<{ groups: GroupRow[] }>("/v1/groups", 2000);
  return (
    <>
      <PageHead
        title="Groups"
        note="Each message of a group goes to one of its members. Queues of the HTTP door are groups as well."
      />
      {found.error !== "" && <Notice tone="bad">{found.error}</Notice>}
      {found.value !== null && (
        <div class="panel">
          <Table
            label="Groups"
            columns={COLUMNS}
            rows={found.value.groups}
            keyOf={(group) => group.name}
            empty="There are no groups."
          />
        </div>
      )}
    </>
  );
}

const SHARD_COLUMNS: Column<GroupShard>[] = [
  { name: "Shard", show: (shard) => shard.shard },
  { name: "Stream", show: (shard) => <a href={href("streams", [shard.stream])}>{shard.stream}</a> },
  { name: "Position", number: true, show: (shard) => count(shard.position) },
  { name: "Next offset", number: true, show: (shard) => count(shard.next_offset) },
  {
    name: "Lag",
    number: true,
    show: (shard) => (
      <span class={isFar(shard.lag) ? "lag" : ""}>
        {shard.lag_is_exact ? "" : "at most "}
        {count(shard.lag)}
      </span>
    ),
  },
  { name: "In flight", number: true, show: (shard) => count(shard.in_flight) },
  { name: "Comes again", number: true, minor: true, show: (shard) => count(shard.ready_again) },
  { name: "Delayed", number: true, minor: true, show: (shard) => count(shard.delayed) },
  { name: "Dead", number: true, show: (shard) => count(shard.dead) },
  { name: "Missed", number: true, show: (shard) => count(shard.missed) },
];

export function GroupPage({ name }: { name: string }) {
  const found = useResource<GroupDetail>(path(["v1", "groups", name]), 2000);
  const group = found.value;
  const sum = (pick: (shard: GroupShard) => number) =>
    group?.shards.reduce((total, shard) => total + pick(shard), 0) ?? 0;
  return (
    <>
      <Back page="groups">Groups</Back>
      <PageHead
        title={<span class="id">{name}</span>}
        note={group !== null && <Filters filters={group.filters} />}
        actions={mayOperate() && group !== null && <Actions name={name} reload={found.reload} />}
      />
      {found.error !== "" && <Notice tone="bad">{found.error}</Notice>}
      {group !== null && (
        <>
          <dl class="tiles">
            <Tile label="Lag" value={count(group.lag)} note={plural(group.shards.length, "shard")} />
            <Tile
              label="In flight"
              value={count(group.in_flight)}
              note={`${count(group.in_flight_max)} at most`}
            />
            <Tile
              label="Members at this node"
              value={count(group.members_here)}
              note={`${count(group.waiting_here)} wait for a message`}
            />
            <Tile
              label="Dead"
              value={count(sum((shard) => shard.dead))}
              note={group.dead_letter === "" ? "no dead letters" : group.dead_letter}
            />
            <Tile label="Missed" value={count(sum((shard) => shard.missed))} note="removed by retention" />
          </dl>
          <Panel title="Position in each shard">
            <Table
              label="Positions"
              columns={SHARD_COLUMNS}
              rows={group.shards}
              keyOf={(shard) => shard.shard}
              empty="It reads no shard."
            />
          </Panel>
          {group.leaderless.length > 0 && (
            <Panel title="Share of work" note="Leaderless streams: which nodes deliver.">
              <Table
                label="Share of work"
                columns={[
                  { name: "Stream", show: (row) => <a href={href("streams", [row.stream])}>{row.stream}</a> },
                  { name: "Delivered by", show: (row) => <NodeLinks nodes={row.deliver} /> },
                  { name: "Lag", number: true, show: (row) => count(row.lag) },
                ]}
                rows={group.leaderless}
                keyOf={(row) => row.stream}
                empty=""
              />
            </Panel>
          )}
          <Panel title="Settings">
            <Facts
              rows={[
                [
                  "Deliveries at most",
                  group.deliveries_max === 0 ? "any number" : count(group.deliveries_max),
                ],
                ["Dead letters to", group.dead_letter === "" ? "nowhere" : <Code>{group.dead_letter}</Code>],
                ["In flight at most", count(group.in_flight_max)],
              ]}
            />
          </Panel>
        </>
      )}
    </>
  );
}

function Actions({ name, reload }: { name: string; reload: () => void }) {
  const target = useRef("latest");
  const reset = () => {
    target.current = "latest";
    ask({
      title: `Reset group ${name}?`,
      body: <ResetBody target={target} />,
      verb: "Reset",
      act: async () => {
        const to = target.current;
        await post(path(["v1", "groups", name, "reset"]), { to: /^\d+$/.test(to) ? Number(to) : to });
        reload();
      },
      done: `${name} begins anew`,
    });
  };
  const destroy = () =>
    ask({
      title: `Delete group ${name}?`,
      body: (
        <p>
          Its positions are forgotten, and what its members have out is void. Messages stay in their streams.
          It cannot be undone.
        </p>
      ),
      verb: "Delete",
      act: async () => {
        await remove(path(["v1", "groups", name]));
        go(href("groups"));
      },
      done: `${name} is deleted`,
    });
  return (
    <>
      <button type="button" onClick={reset}>
        Reset…
      </button>
      <button type="button" class="danger-quiet" onClick={destroy}>
        Delete…
      </button>
    </>
  );
}

function ResetBody({ target }: { target: { current: string } }) {
  return (
    <>
      <p>What is out is forgotten, and its receipts are void. Messages may be delivered again, or never.</p>
      <div class="field">
        <label for="reset-to">Begin at: earliest, latest or an offset</label>
        <input
          id="reset-to"
          type="text"
          value={target.current}
          pattern="earliest|latest|[0-9]+"
          list="reset-places"
          onInput={(event) => {
            target.current = event.currentTarget.value.trim();
          }}
        />
        <datalist id="reset-places">
          <option value="earliest" />
          <option value="latest" />
        </datalist>
      </div>
    </>
  );
}
