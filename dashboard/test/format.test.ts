import { describe, expect, it } from "vitest";
import {
  ago,
  bytes,
  bytesPerSecond,
  count,
  duration,
  milliseconds,
  percent,
  perSecond,
  plural,
  rate,
  retention,
} from "../src/format";

describe("numbers", () => {
  it("have thousands separators, and a dash where nobody knows", () => {
    expect(count(0)).toBe("0");
    expect(count(1234567)).toBe("1,234,567");
    expect(count(null)).toBe("–");
    expect(count(undefined)).toBe("–");
    expect(count(Number.NaN)).toBe("–");
  });

  it("have one digit only where they are small", () => {
    expect(rate(0)).toBe("0");
    expect(rate(0.25)).toBe("0.3");
    expect(rate(9.94)).toBe("9.9");
    expect(rate(14.6)).toBe("15");
    expect(perSecond(12345)).toBe("12,345/s");
    expect(percent(3.14)).toBe("3.1 %");
    expect(percent(93.4)).toBe("93 %");
    expect(milliseconds(0.123)).toBe("0.12 ms");
    expect(milliseconds(1234.5)).toBe("1,235 ms");
  });

  it("count things", () => {
    expect(plural(1, "node")).toBe("1 node");
    expect(plural(2, "node")).toBe("2 nodes");
    expect(plural(0, "query", "queries")).toBe("0 queries");
  });
});

describe("bytes", () => {
  it("have binary units and three digits", () => {
    expect(bytes(0)).toBe("0 B");
    expect(bytes(1023)).toBe("1023 B");
    expect(bytes(1024)).toBe("1.00 KiB");
    expect(bytes(15_000)).toBe("14.6 KiB");
    expect(bytes(150_000)).toBe("146 KiB");
    expect(bytes(5 * 1024 ** 3)).toBe("5.00 GiB");
    expect(bytesPerSecond(2048)).toBe("2.00 KiB/s");
  });

  it("go to the next unit rather than show 1024 of one", () => {
    expect(bytes(1024 * 1024 - 1)).toBe("1.00 MiB");
    expect(bytes(1024 ** 2 * 9.999)).toBe("10.0 MiB");
    expect(bytes(1024 ** 2 * 99.99)).toBe("100 MiB");
  });

  it("end at the largest unit", () => {
    expect(bytes(5000 * 1024 ** 5)).toBe("5000 PiB");
  });
});

describe("times", () => {
  it("show their two largest units", () => {
    expect(duration(0)).toBe("0 s");
    expect(duration(59.9)).toBe("59 s");
    expect(duration(61)).toBe("1 min 1 s");
    expect(duration(3600)).toBe("1 h");
    expect(duration(90_061)).toBe("1 d 1 h");
    expect(duration(86_401)).toBe("1 d");
    expect(duration(-5)).toBe("0 s");
  });

  it("say how long ago", () => {
    expect(ago(5_000_000, 5_400_000)).toBe("now");
    expect(ago(0, 61_000_000)).toBe("1 min 1 s ago");
  });

  it("say how long a stream keeps things", () => {
    expect(retention(0, 0)).toBe("for ever");
    expect(retention(604_800, 0)).toBe("7 d");
    expect(retention(0, 1024 ** 3)).toBe("1.00 GiB a shard");
    expect(retention(86_400, 1024 ** 3)).toBe("1 d, 1.00 GiB a shard");
  });
});
