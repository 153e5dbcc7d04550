import { describe, expect, it } from "vitest";
import { href, parse } from "../src/router";
import { path } from "../src/api";

describe("addresses", () => {
  it("name a page, what it shows, and parameters", () => {
    expect(parse("")).toEqual({ page: "cluster", path: [], query: {} });
    expect(parse("#/streams/a%2Fb?tab=x%26y&z=1")).toEqual({
      page: "streams",
      path: ["a/b"],
      query: { tab: "x&y", z: "1" },
    });
    expect(parse("#/clients/a?b")).toEqual({ page: "clients", path: ["a"], query: { b: "" } });
  });

  it("come back as they went in, whatever a name contains", () => {
    for (const name of ["a/b", "ä?x=1#y", "<script>", "100%", "a b+c", "."]) {
      expect(parse(href("clients", [name], { search: name }))).toEqual({
        page: "clients",
        path: [name],
        query: { search: name },
      });
    }
  });

  it("that are broken do not break the page", () => {
    expect(parse("#/clients/%E0%A4%A").path).toEqual(["%E0%A4%A"]);
  });

  it("leave out what is not said", () => {
    expect(href("messages", [], { stream: undefined, filter: "" })).toBe("#/messages");
    expect(path(["v1", "clients", "a/b"], { search: "x y", node: undefined })).toBe(
      "/v1/clients/a%2Fb?search=x+y",
    );
  });
});
