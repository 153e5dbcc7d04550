/**
 * A cluster that does not exist: three nodes whose figures move, with names and payloads that try to be markup.
 * It answers as the node's API does, so that the dashboard can be worked on, tested and photographed alone.
 */

export const HOSTILE = {
  topic: 'sensors/<img src=x onerror="window.hacked=1">/"quoted"',
  client: "<script>window.hacked=2</script>",
  payload: '<b onmouseover="window.hacked=3">bold</b><svg onload="window.hacked=4">',
  user: "mallory'\"><i>",
  event: "refused <iframe src=javascript:window.hacked=5> from 10.0.0.66",
};

const START_US = Date.now() * 1000;
const NODES = ["mill-1", "mill-2", "mill-3"];
const MIB = 1024 * 1024;

export function nowUs() {
  return Date.now() * 1000;
}

function wave(period_s, phase = 0) {
  return Math.sin((Date.now() / 1000 / period_s) * 2 * Math.PI + phase);
}

/** Not chance: the same moment gives the same figure. */
function noise(seed) {
  const x = Math.sin(Math.floor(Date.now() / 1000) * 12.9898 + seed * 78.233) * 43758.5453;
  return x - Math.floor(x);
}

export class World {
  dead = new Set();
  draining = new Set();
  leader = "mill-2";
  term = 4;
  events = [];
  listeners = new Set();
  clients = makeClients();
  sessions = makeSessions();
  users = [
    { name: "admin", roles: ["admin"], has_password: true, tokens: 0 },
    { name: "spark", roles: ["pipeline"], has_password: false, tokens: 2 },
    { name: HOSTILE.user, roles: [], has_password: true, tokens: 0 },
  ];
  rules = [
    { number: 1, user: "admin", effect: "allow", action: "all", filter: "#" },
    { number: 2, user: "spark", effect: "allow", action: "subscribe", filter: "sensors/#" },
    { number: 3, user: HOSTILE.user, effect: "deny", action: "publish", filter: "control/#" },
    { number: 4, user: "*", effect: "deny", action: "all", filter: "#" },
  ];
  published = [];

  constructor() {
    const past = [
      [3600, "mill-1", "node", "info", "mill-1 started, version 0.2.0", { data_bytes: 734003200 }],
      [3590, "mill-2", "join", "info", "mill-2 joined the cluster", { replica: "5f3174ea" }],
      [3580, "mill-3", "join", "info", "mill-3 joined the cluster", { replica: "9edc57bd" }],
      [3578, "mill-2", "election", "info", "mill-2 leads group 0 (cluster) in term 2", { group: 0, term: 2 }],
      [2400, "mill-2", "stream", "info", "stream orders was created", { replication: "primary-backup" }],
      [
        1900,
        "mill-3",
        "client",
        "warning",
        "client meter-0113 was disconnected: keep alive ran out",
        { keep_alive_s: 60 },
      ],
      [1300, "mill-1", "access", "warning", HOSTILE.event, { user: HOSTILE.user }],
      [900, "mill-1", "link", "error", "the link to mill-3 is lost", { peer: "mill-3" }],
      [898, "mill-1", "link", "info", "the link to mill-3 is up", { peer: "mill-3", rtt_ms: 0.7 }],
      [840, "mill-3", "storage", "warning", "a sync of group 17 took 412 ms", { group: 17, took_ms: 412 }],
      [420, "mill-2", "election", "info", "mill-2 leads group 0 (cluster) in term 4", { group: 0, term: 4 }],
      [300, "mill-2", "pipeline", "error", "pipeline alerts failed and is started again", { restarts: 2 }],
      [
        120,
        "mill-3",
        "limit",
        "warning",
        "client reporter reached limits.queue_messages_max",
        { queued: 10000 },
      ],
      [30, "mill-1", "group", "info", "group billing was reset to latest", { by: "admin" }],
    ];
    past.forEach(([age_s, node, kind, severity, text, fields], index) => {
      this.events.unshift({
        id: `e${index}`,
        time_us: START_US - age_s * 1e6,
        node,
        kind,
        severity,
        text,
        fields,
      });
    });
  }

  say(node, kind, severity, text, fields = {}) {
    const event = { id: `e${this.events.length}`, time_us: nowUs(), node, kind, severity, text, fields };
    this.events.unshift(event);
    for (const listener of this.listeners) listener(event);
  }

  kill(node) {
    this.dead.add(node);
    this.say("mill-1", "node", "error", `${node} is unreachable`, { silent_s: 1 });
    if (this.leader === node) {
      this.leader = NODES.find((other) => !this.dead.has(other)) ?? null;
      this.term += 1;
      this.say(
        this.leader,
        "election",
        "warning",
        `${this.leader} leads group 0 (cluster) in term ${this.term}`,
        {
          group: 0,
          term: this.term,
        },
      );
    }
  }

  revive(node) {
    this.dead.delete(node);
    this.say(node, "node", "info", `${node} is back`, {});
  }

  lead(index) {
    const wanted = NODES[index % NODES.length];
    return this.dead.has(wanted) ? NODES.find((node) => !this.dead.has(node)) : wanted;
  }

  overview() {
    const nodes = NODES.map((node, index) => this.node(node, index));
    const streams = this.streamRows();
    const sum = (pick) => nodes.reduce((total, row) => total + (row.figures ? pick(row.figures) : 0), 0);
    return {
      time_us: nowUs(),
      node: "mill-1",
      cluster: "8f3f6f34dae5bea8",
      version: "0.2.0",
      leader: this.leader,
      is_settled: true,
      nodes,
      groups: this.groupRows(),
      streams,
      totals: {
        clients: sum((row) => row.clients),
        sessions: this.sessions.length,
        in_messages_s: sum((row) => row.in_messages_s),
        out_messages_s: sum((row) => row.out_messages_s),
        in_bytes_s: sum((row) => row.in_bytes_s),
        out_bytes_s: sum((row) => row.out_bytes_s),
        stored_bytes: streams.reduce((total, row) => total + row.bytes, 0),
      },
    };
  }

  node(node, index) {
    const isDead = this.dead.has(node);
    const groups = this.groupRows();
    const inward = 4200 + 900 * wave(40, index) + 500 * noise(index);
    return {
      node,
      replica: [
        "8f3f6f34dae5bea87cbe12b84cfdd2ec",
        "5f3174eaf54e2c7dfa7830168df5f3fa",
        "9edc57bdf22ff66b0893e909b6dd2459",
      ][index],
      state: isDead ? "unreachable" : "up",
      is_draining: this.draining.has(node),
      leads_meta: this.leader === node,
      leads: groups.filter((group) => group.leader === node).length,
      addresses: {
        mqtt: `127.0.0.1:188${index + 3}0`,
        http: `127.0.0.1:188${index + 3}1`,
        peer: `127.0.0.1:188${index + 3}2`,
      },
      silent_s: isDead ? 6.2 : 0,
      host: "",
      is_answering: !isDead,
      figures: isDead
        ? null
        : {
            version: "0.2.0",
            uptime_s: 3600 + Math.floor((nowUs() - START_US) / 1e6),
            clients: 41 + index * 7,
            sessions: 22 + index,
            subscriptions: 160 + index * 11,
            retained_messages: 812,
            retained_bytes: 198_000,
            cpu_percent: 18 + 7 * wave(30, index) + 6 * noise(index + 10),
            memory_bytes: (182 + index * 9 + 4 * wave(90, index)) * MIB,
            disk_used_bytes: (61 + index * 17) * 1024 * MIB,
            disk_free_bytes: (39 - index * 15) * 1024 * MIB,
            loop_lag_ms: 0.4 + noise(index + 20),
            in_messages_s: inward,
            out_messages_s: inward * 1.7,
            in_bytes_s: inward * 140,
            out_bytes_s: inward * 238,
            dropped: index === 2 ? 37 : 0,
            waits_for: "",
            links: NODES.filter((other) => other !== node).map((other) => ({
              to: other,
              is_up: !this.dead.has(other),
              rtt_ms: this.dead.has(other) ? null : 0.4 + 0.3 * noise(index + 30),
            })),
          },
    };
  }

  groupRows() {
    const kinds = [
      [0, "cluster", "leader", "follower"],
      [1, "sessions", "leader", "follower"],
      [16, "stream default", "leader", "follower"],
      [17, "stream sensors", "leader", "follower"],
      [18, "stream sensors", "leader", "follower"],
      [21, "stream orders", "primary", "backup"],
    ];
    const moved = Math.floor((nowUs() - START_US) / 2000);
    return kinds.map(([group, keeps, first, other], index) => {
      const leader = group === 0 ? this.leader : this.lead(index);
      const commit = 4_812_331 + index * 91_113 + (group >= 16 ? moved : 12);
      const followers = NODES.filter((node) => node !== leader);
      return {
        group,
        keeps,
        leader,
        term: group === 0 ? this.term : 3 + (index % 2),
        commit,
        applied: commit,
        voters: group === 21 ? [leader, followers[0]] : NODES,
        learners: group === 21 ? [followers[1]] : [],
        replicas: NODES.map((node) => {
          const isLost = this.dead.has(node);
          const lag = node === leader ? 0 : isLost ? null : node === "mill-3" && group === 17 ? 14 : 0;
          const role = node === leader ? first : group === 21 && node === followers[1] ? "observer" : other;
          return { node, role: isLost ? "unknown" : role, applied: isLost ? null : commit - (lag ?? 0), lag };
        }),
      };
    });
  }

  streamRows() {
    const moved = Math.floor((nowUs() - START_US) / 1e6);
    const rate = (base, index) => base * (1 + 0.25 * wave(35, index) + 0.15 * noise(index + 40));
    const isHurt = this.dead.size > 0;
    const row = (name, replication, filters, shards, bytes, messages, per_s, leaders, more = {}) => ({
      name,
      replication,
      filters,
      shards,
      replicas: 3,
      capture: name === "default" ? "acknowledged" : "all",
      bytes: bytes + moved * 40_000,
      messages: messages + moved * Math.floor(per_s),
      in_messages_s: per_s,
      leaders,
      is_degraded: false,
      degraded: "",
      ...more,
    });
    return [
      row("chat", "routed", ["chat/#"], 1, 0, 0, rate(310, 1), []),
      row("default", "quorum", [], 1, 92 * MIB, 318_400, rate(45, 2), [this.lead(2)]),
      row("logs", "leaderless", ["logs/#", "audit/+/log"], 1, 410 * MIB, 1_904_221, rate(900, 3), NODES),
      row("orders", "primary-backup", ["orders/#"], 1, 12 * MIB, 0, rate(220, 4), [this.lead(5)], {
        is_degraded: isHurt,
        degraded: isHurt ? "shard 21 has no backup" : "",
      }),
      row(
        "sensors",
        "quorum",
        ["sensors/#"],
        2,
        6_310 * MIB,
        48_112_904,
        rate(11_400, 5),
        [this.lead(3), this.lead(4)],
        {
          is_degraded: isHurt,
          degraded: isHurt ? "2 of 3 replicas" : "",
        },
      ),
    ];
  }

  streams() {
    const known = new Map(this.streamRows().map((row) => [row.name, row]));
    const shard = (stream, number, role, term, first, next, bytes, more = {}) => ({
      stream,
      shard: number,
      first_offset: first,
      next_offset: next,
      bytes,
      staged_bytes: 0,
      staged_attempts: 0,
      sealed: false,
      role,
      term,
      ...more,
    });
    const detail = (name, shard_list, more = {}) => {
      const row = known.get(name);
      return {
        name,
        filters: row.filters,
        replication: row.replication,
        shards: row.shards,
        replicas: row.replicas,
        capture: row.capture,
        retention_age_s: name === "default" ? 86_400 : 604_800,
        retention_bytes: name === "default" ? 10_737_418_240 : 0,
        hold_age_s: 604_800,
        hold_bytes: 0,
        compression: name === "logs" ? "zlib" : "none",
        edge: "",
        generation: 3,
        shard_list,
        ...more,
      };
    };
    return [
      detail("chat", []),
      detail("default", [shard("default", 16, "follower", 4, 1_200, 319_600, known.get("default").bytes)]),
      detail(
        "logs",
        [
          shard("logs", 3688552586, "origin", 1, 0, 804_112, 180 * MIB, { origin: "mill-1" }),
          shard("logs", 3345415936, "copy", 1, 0, 611_040, 130 * MIB, { origin: "mill-2" }),
          shard("logs", 3470596781, "copy", 2, 0, 489_069, 100 * MIB, { origin: "mill-3" }),
        ],
        {
          ack: "majority",
          storage: "disk",
          groups: {
            "$share/workers/logs/#": {
              clients: ["worker-1", "worker-2", HOSTILE.client],
              connected_here: 1,
              deliver: ["mill-1", "mill-3"],
              lag: 0,
            },
            "group/audit": { clients: ["auditor"], connected_here: 0, deliver: ["mill-2"], lag: 1_204 },
          },
        },
      ),
      detail(
        "orders",
        [
          shard("orders", 21, "backup", 6, 0, 0, 12 * MIB, {
            primary: this.lead(5),
            backup: this.dead.size > 0 ? null : "mill-1",
            in_sync: this.dead.size === 0,
            measured: [
              {
                what: "dispatch orders/urgent/#",
                p99_ms: 3.42,
                bound_ms: 390,
                late: 0,
                of: 91_204,
                alert: false,
              },
              {
                what: "dispatch orders/slow/#",
                p99_ms: 2100.4,
                bound_ms: 1990,
                late: 14,
                of: 7_311,
                alert: true,
              },
              { what: "to the backup", p99_ms: 1.21, bound_ms: 5, late: 2, of: 91_204, alert: false },
              { what: "failover", p99_ms: 118, bound_ms: 225, late: 0, of: 3, alert: false },
            ],
            overloaded: 0,
            queued: 12,
            copies: 91_204,
            stored: 0,
            recovered: 41,
            uncopied: 0,
            dropped: 7,
          }),
        ],
        {
          primary_backup: { schedule: "frame", check_interval_ms: 50 },
          topic_classes: [
            {
              filter: "orders/urgent/#",
              period_ms: 100,
              deadline_ms: 400,
              loss_tolerance: 0,
              retention: 10,
              dispatch_ms: 390,
              replicate_ms: 765,
              is_replicated: false,
              why: "dispatched within 390 ms, before 765 ms",
            },
            {
              filter: "orders/slow/#",
              period_ms: 1000,
              deadline_ms: 2000,
              loss_tolerance: null,
              retention: 0,
              dispatch_ms: 1990,
              replicate_ms: null,
              is_replicated: false,
              why: "any number of messages may be lost",
            },
          ],
          warnings:
            this.dead.size > 0
              ? ["shard 21 has no backup: what is lost with its node is lost; add a node to the cluster"]
              : [],
        },
      ),
      detail("sensors", [
        shard("sensors", 17, "follower", 4, 1_000, 24_060_452, 3_150 * MIB),
        shard("sensors", 18, "leader", 3, 1_000, 24_052_452, 3_160 * MIB, {
          staged_bytes: 88_000,
          staged_attempts: 2,
        }),
        shard("sensors", 9, "follower", 2, 0, 4_400, 3 * MIB, { sealed: true }),
      ]),
    ];
  }

  groups() {
    const moved = Math.floor((nowUs() - START_US) / 1e6);
    const group = (name, filters, lag, in_flight, more = {}) => ({
      name,
      filters,
      deliveries_max: 0,
      dead_letter: "",
      in_flight_max: 10_000,
      lag,
      in_flight,
      ...more,
    });
    return [
      group("audit", ["logs/#"], 1_204, 0),
      group("billing", ["sensors/+/meter", "orders/#"], 310 + (moved % 40), 128, {
        deliveries_max: 5,
        dead_letter: "dead-letter/billing",
      }),
      group(`queue:${HOSTILE.topic}`, [HOSTILE.topic], 3, 0),
      group("spark/wide-table", ["sensors/#"], 0, 0),
    ];
  }

  group(name) {
    const found = this.groups().find((group) => group.name === name);
    if (found === undefined) return null;
    const shard = (number, stream, position, next_offset, more = {}) => ({
      shard: number,
      stream,
      position,
      next_offset,
      lag: next_offset - position,
      lag_is_exact: true,
      in_flight: 0,
      ready_again: 0,
      delayed: 0,
      dead: 0,
      missed: 0,
      epoch: 1,
      ...more,
    });
    return {
      ...found,
      waiting_here: 1,
      members_here: 2,
      shards: [
        shard(17, "sensors", 24_060_300, 24_060_452, { in_flight: 64, ready_again: 2 }),
        shard(18, "sensors", 24_052_294, 24_052_452, { in_flight: 64, dead: 1, lag_is_exact: false }),
      ],
      leaderless: name === "audit" ? [{ stream: "logs", lag: 1_204, deliver: ["mill-2", "mill-3"] }] : [],
    };
  }

  pipelines() {
    const moved = (nowUs() - START_US) / 1e6;
    return [
      {
        name: "alerts",
        time_us: nowUs() - 400_000,
        state: "running",
        restarts: 2,
        error: `java.lang.IllegalStateException: bad row ${HOSTILE.payload}\n\tat org.example.Alerts.run(Alerts.scala:41)`,
        queries: [
          { name: "late_meters", batch: 118, rows: 90_110, rows_per_s: 140 + 30 * wave(20), lag: 210 },
        ],
      },
      {
        name: "wide-table",
        time_us: nowUs() - 900_000,
        state: "running",
        is_declared: true,
        node: "mill-2",
        epoch: 3,
        ui: "http://mill-2:4040",
        restarts: 0,
        error: "",
        queries: [
          {
            name: "bronze",
            batch: 412 + Math.floor(moved / 2),
            rows: 8_112_404 + Math.floor(moved * 11_000),
            rows_per_s: 11_200 + 900 * wave(25),
            lag: 0,
          },
          {
            name: "silver",
            batch: 409 + Math.floor(moved / 2),
            rows: 8_010_022,
            rows_per_s: 10_900 + 700 * wave(25, 1),
            lag: 4_120,
          },
        ],
      },
      {
        name: "nightly",
        time_us: nowUs() - 7_200_000_000,
        state: "stopped",
        restarts: 0,
        error: "",
        queries: [],
      },
    ];
  }

  messages(stream, shard, from, limit, filter) {
    const row = this.streams()
      .find((one) => one.name === stream)
      ?.shard_list.find((one) => one.shard === shard);
    if (row === undefined) return null;
    const first = from === "earliest" ? row.first_offset : from === "latest" ? row.next_offset : Number(from);
    const messages = [];
    for (let offset = first; offset < Math.min(first + limit, row.next_offset); offset += 1) {
      const message = {
        shard,
        offset,
        ...aMessage(offset),
        time_us: nowUs() - (row.next_offset - offset) * 90_000,
      };
      if (filter === "#" || message.topic.startsWith(filter.replace(/[#+].*$/, ""))) messages.push(message);
    }
    return {
      stream,
      shard,
      messages,
      next_offset: Math.min(first + limit, row.next_offset),
      end_offset: row.next_offset,
    };
  }
}

/** The message with this number: JSON, text, bytes and something hostile by turns. */
export function aMessage(number) {
  const place = ["north", "east", "south", "west"][number % 4];
  switch (number % 7) {
    case 0:
      return {
        topic: HOSTILE.topic,
        payload: HOSTILE.payload,
        qos: 1,
        retain: false,
        publisher: HOSTILE.client,
      };
    case 3:
      return {
        topic: `sensors/${place}/frame`,
        payload: Buffer.from(Array.from({ length: 40 }, (_, index) => (index * 37 + number) % 256)).toString(
          "base64",
        ),
        encoding: "base64",
        qos: 1,
        retain: false,
        publisher: `camera-${number % 5}`,
        content_type: "application/octet-stream",
      };
    case 5:
      return {
        topic: `sensors/${place}/status`,
        payload: "online",
        qos: 1,
        retain: true,
        publisher: `meter-${number % 90}`,
      };
    default:
      return {
        topic: `sensors/${place}/meter`,
        payload: JSON.stringify({
          id: number % 90,
          watts: Math.round(400 + 90 * Math.sin(number)),
          ok: true,
          phases: [1.2, 3.4, 2.2],
        }),
        qos: 1 + (number % 2),
        retain: false,
        publisher: `meter-${number % 90}`,
        content_type: "application/json",
        user_properties: [["site", place]],
      };
  }
}

function makeClients() {
  const made = Array.from({ length: 130 }, (_, index) => ({
    client_id: `meter-${String(index).padStart(4, "0")}`,
    user: index % 3 === 0 ? "spark" : null,
    node: NODES[index % 3],
    address: `10.0.${index % 5}.${index + 10}:${40_000 + index}`,
    door: ["mqtt", "mqtts", "ws", "text"][index % 4],
    protocol: index % 4 === 3 ? "text" : ["5", "3.1.1"][index % 2],
    connected_us: START_US - (index * 37 + 5) * 1e6,
    keep_alive_s: 60,
    is_durable: index % 4 === 0,
    subscriptions: 1 + (index % 5),
    in_flight: index % 6,
    queued: index % 17 === 0 ? index * 3 : 0,
    received: 1_000 + index * 331,
    sent: 10 * index,
  }));
  return [{ ...made[0], client_id: HOSTILE.client, user: HOSTILE.user }, ...made];
}

function makeSessions() {
  return [HOSTILE.client, "meter-0000", "meter-0004", "reporter", "archive/αβγ"].map((client_id, index) => ({
    client_id,
    user: index === 0 ? HOSTILE.user : "spark",
    owner: index === 4 ? null : NODES[index % 3],
    is_connected: index < 3,
    expiry_s: index === 4 ? 4294967295 : 86_400,
    away_since_us: index < 3 ? null : START_US - index * 4_000 * 1e6,
    subscriptions: index + 1,
    queued: index === 3 ? 10_000 : index * 12,
    unfinished_qos2: index === 3 ? 4 : 0,
    has_will: index % 2 === 0,
  }));
}

export function subscriptions() {
  const plain = {
    no_local: false,
    retain_as_published: false,
    retain_handling: 0,
    identifier: null,
    group: null,
  };
  return [
    { ...plain, filter: "sensors/+/meter", qos: 1 },
    { ...plain, filter: HOSTILE.topic, qos: 2, no_local: true, identifier: 7 },
    { ...plain, filter: "logs/#", qos: 0, group: "workers", retain_as_published: true, retain_handling: 2 },
  ];
}
