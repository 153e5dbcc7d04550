import { describe, expect, it } from "vitest";
import { changes } from "../src/components/announcer";
import type { NodeRow, Overview, ReplicationGroupRow } from "../src/contract";
import { groupsOf, healthOf, worstLag } from "../src/health";
import { arrange, linksOf } from "../src/layout";
import { merged } from "../src/pages/events";

function node(name: string, changes_: Partial<NodeRow> = {}, links: Record<string, boolean> = {}): NodeRow {
  return {
    node: name,
    replica: name,
    state: "up",
    is_draining: false,
    leads_meta: false,
    leads: 0,
    addresses: { mqtt: null, http: null, peer: null },
    silent_s: 0,
    host: "",
    is_answering: true,
    figures: {
      links: Object.entries(links).map(([to, is_up]) => ({ to, is_up, rtt_ms: is_up ? 1 : null })),
      waits_for: "",
    } as unknown as NonNullable<NodeRow["figures"]>,
    ...changes_,
  };
}

function overview(nodes: NodeRow[], more: Partial<Overview> = {}): Overview {
  return {
    leader: nodes[0]?.node ?? null,
    is_settled: true,
    nodes,
    groups: [],
    streams: [],
    ...more,
  } as unknown as Overview;
}

const group = (keeps: string, lags: (number | null)[]): ReplicationGroupRow =>
  ({
    group: 17,
    keeps,
    leader: "a",
    replicas: lags.map((lag, index) => ({ node: `n${index}`, role: "follower", applied: 0, lag })),
  }) as unknown as ReplicationGroupRow;

describe("the health of a cluster", () => {
  it("is good while all nodes are up", () => {
    expect(healthOf(overview([node("a"), node("b")]))).toEqual({
      level: "good",
      word: "Healthy",
      reasons: ["2 nodes up"],
    });
  });

  it("is bad when a node or the leader is gone, and the worst is said first", () => {
    const health = healthOf(
      overview([node("a", { is_draining: true }), node("b", { state: "unreachable" })]),
    );
    expect(health.level).toBe("bad");
    expect(health.reasons).toEqual(["Node b is unreachable", "Node a is draining"]);
    expect(healthOf(overview([node("a")], { leader: null })).level).toBe("bad");
  });

  it("does not mind a node that was removed", () => {
    expect(healthOf(overview([node("a"), node("b", { state: "removed" })])).level).toBe("good");
  });
});

describe("replica lag", () => {
  it("is that of the replica furthest behind", () => {
    const now = overview([node("a")], { groups: [group("stream x", [0, 5, null]), group("stream xy", [9])] });
    expect(worstLag(groupsOf(now, "x"))).toBe(5);
    expect(worstLag(groupsOf(now, "nothing"))).toBeNull();
  });
});

describe("the picture", () => {
  it("keeps every card inside, whatever the width and the number of nodes", () => {
    for (const width of [280, 376, 700, 1400]) {
      for (let size = 1; size <= 9; size += 1) {
        const picture = arrange(
          Array.from({ length: size }, (_, index) => node(`n${index}`)),
          width,
        );
        for (const box of picture.boxes) {
          expect(box.x - picture.cardWidth / 2).toBeGreaterThanOrEqual(0);
          expect(box.x + picture.cardWidth / 2).toBeLessThanOrEqual(width);
          expect(box.y - picture.cardHeight / 2).toBeGreaterThanOrEqual(0);
          expect(box.y + picture.cardHeight / 2).toBeLessThanOrEqual(picture.height);
        }
      }
    }
  });

  it("joins nodes by what either says, and by nothing when both are mute", () => {
    const states = (nodes: NodeRow[]) => linksOf(arrange(nodes, 600).boxes).map((line) => line.state);
    expect(states([node("a", {}, { b: true }), node("b")])).toEqual(["up"]);
    expect(states([node("a", {}, { b: true }), node("b", {}, { a: false })])).toEqual(["down"]);
    expect(states([node("a", {}, { b: true }), node("b", { state: "unreachable", figures: null })])).toEqual([
      "down",
    ]);
    expect(states([node("a"), node("b")])).toEqual(["unknown"]);
  });
});

describe("what is announced", () => {
  it("is every change of a node and of the leader", () => {
    const before = overview([node("a"), node("b"), node("c")]);
    const after = overview([node("b", { state: "unreachable" }), node("c"), node("d")], { leader: "c" });
    expect(changes(before, after)).toEqual([
      "Node b is unreachable.",
      "Node d joined.",
      "Node a left.",
      "c leads the cluster.",
    ]);
    expect(changes(before, before)).toEqual([]);
  });
});

describe("events", () => {
  const event = (
    id: string,
    time_us: number,
    severity: "info" | "warning" | "error" = "info",
    kind = "node",
  ) => ({
    id,
    time_us,
    node: "a",
    kind,
    severity,
    text: id,
    fields: {},
  });
  it("stand on one timeline, each once, newest first", () => {
    const rows = merged(
      [
        [event("x", 1), event("y", 3)],
        [event("z", 2), event("x", 1)],
      ],
      {},
    );
    expect(rows.map((row) => row.id)).toEqual(["y", "z", "x"]);
  });
  it("are filtered by kind, and by severity or worse", () => {
    const rows = [event("x", 1), event("y", 2, "warning"), event("z", 3, "error", "link")];
    expect(merged([rows], { severity: "warning" }).map((row) => row.id)).toEqual(["z", "y"]);
    expect(merged([rows], { kind: "link" }).map((row) => row.id)).toEqual(["z"]);
    expect(merged([rows], { node: "b" })).toEqual([]);
    const busy = [event("x", 1, "info", "client"), event("y", 2)];
    expect(merged([busy], { kind: "all but client" }).map((row) => row.id)).toEqual(["y"]);
  });
});
