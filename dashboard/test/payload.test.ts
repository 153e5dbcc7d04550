import { describe, expect, it } from "vitest";
import { bytesOf, hexLines, prettyJson, preview } from "../src/payload";

describe("bytes of a payload", () => {
  it("come from text and from base64", () => {
    expect([...bytesOf("aä", undefined)]).toEqual([0x61, 0xc3, 0xa4]);
    expect([...bytesOf("AP8=", "base64")]).toEqual([0, 255]);
  });
});

describe("the hex view", () => {
  it("has sixteen bytes a line, with what is printable beside them", () => {
    const lines = hexLines(new TextEncoder().encode("0123456789abcdefX\u0000"));
    expect(lines).toEqual([
      {
        offset: "00000000",
        hex: "30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66",
        text: "0123456789abcdef",
      },
      { offset: "00000010", hex: "58 00", text: "X." },
    ]);
  });

  it("ends where it was told to", () => {
    expect(hexLines(new Uint8Array(100), 20).map((line) => line.hex.split(/ +/).length)).toEqual([16, 4]);
    expect(hexLines(new Uint8Array())).toEqual([]);
  });
});

describe("JSON", () => {
  it("is shown with line breaks", () => {
    expect(prettyJson('{"a":[1,2]}')).toBe('{\n  "a": [\n    1,\n    2\n  ]\n}');
    expect(prettyJson(" 12 ")).toBe("12");
  });

  it("is not what merely begins like it", () => {
    for (const text of ["", "hello", "{", "nullable", "12 apples", "<b>"])
      expect(prettyJson(text)).toBeNull();
  });
});

describe("the preview of a payload", () => {
  it("keeps markup as it is, and makes control and direction characters visible", () => {
    expect(preview("<b>x</b>", undefined)).toBe("<b>x</b>");
    expect(preview("a\nb\u202ec\u0000", undefined)).toBe("a·b·c·");
  });

  it("cuts what is long", () => {
    expect(preview("x".repeat(200), undefined, 5)).toBe("xxxxx…");
    expect(preview("AP8=", "base64")).toBe("0x 00 ff");
    expect(preview("", "base64")).toBe("");
  });
});
