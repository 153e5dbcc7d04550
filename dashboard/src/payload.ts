/** A payload as text, JSON and bytes. Everything here is pure. */

const HEX_BYTES_MAX = 4096;

export interface HexLine {
  offset: string;
  hex: string;
  text: string;
}

/** The bytes of a payload as the API sends it: UTF-8 text, or base64 where it is not UTF-8. */
export function bytesOf(payload: string, encoding: string | undefined): Uint8Array {
  if (encoding !== "base64") return new TextEncoder().encode(payload);
  const binary = atob(payload);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

/** Lines of sixteen bytes: offset, the bytes in two blocks of eight, and what is printable of them. */
export function hexLines(data: Uint8Array, bytesMax = HEX_BYTES_MAX): HexLine[] {
  const lines: HexLine[] = [];
  for (let start = 0; start < Math.min(data.length, bytesMax); start += 16) {
    const row = [...data.slice(start, Math.min(start + 16, bytesMax))];
    const pairs = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const hex = [pairs.slice(0, 8).join(" "), pairs.slice(8).join(" ")].join("  ").trimEnd();
    const text = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push({ offset: start.toString(16).padStart(8, "0"), hex, text });
  }
  return lines;
}

/** JSON with line breaks, or null where the text is not an object, a list or a value of JSON. */
export function prettyJson(text: string): string | null {
  const first = text.trimStart().charAt(0);
  if (first === "" || !'{["-0123456789tfn'.includes(first)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** One line for a table: control characters become visible, and what is long is cut. */
export function preview(payload: string, encoding: string | undefined, charactersMax = 160): string {
  if (encoding === "base64") {
    // Four characters are three bytes: a large payload is not decoded for one line.
    const line = hexLines(bytesOf(payload.slice(0, 32), encoding))
      .map((row) => row.hex)
      .join("  ");
    return line === "" ? "" : `0x ${line}`;
  }
  const shown = payload
    .slice(0, charactersMax)
    .replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "·");
  return payload.length > charactersMax ? `${shown}…` : shown;
}
