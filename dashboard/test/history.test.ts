import { describe, expect, it } from "vitest";
import { History, sparklinePath } from "../src/history";

describe("the history of figures", () => {
  it("keeps the newest samples", () => {
    const history = new History(3);
    for (let time = 1; time <= 5; time += 1) history.add("a", time, time * 10);
    expect(history.get("a")).toEqual({ times: [3, 4, 5], values: [30, 40, 50] });
    expect(history.get("b").values).toEqual([]);
  });

  it("takes no sample twice, and none from the past", () => {
    const history = new History();
    history.add("a", 2, 1);
    history.add("a", 2, 9);
    history.add("a", 1, 9);
    expect(history.get("a").values).toEqual([1]);
  });

  it("is bounded in names, and forgets those that are gone", () => {
    const history = new History(3, 2);
    history.add("a", 1, 1);
    history.add("b", 100, 1);
    history.add("c", 100, 1);
    expect(history.size).toBe(2);
    history.prune(101, 60);
    expect(history.get("a").values).toEqual([]);
    history.add("c", 102, 1);
    expect(history.get("c").values).toEqual([1]);
  });
});

describe("a small chart", () => {
  it("goes from edge to edge, with zero at the bottom", () => {
    expect(sparklinePath([0, 10, 5], 20, 12)).toBe("M0.0 11.0L10.0 1.0L20.0 6.0");
    expect(sparklinePath([5], 20, 12)).toBe("");
    expect(sparklinePath([0, 0], 20, 12)).toBe("M0.0 11.0L20.0 11.0");
  });
});
