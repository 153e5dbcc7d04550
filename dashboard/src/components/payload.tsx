/** A message opened: its properties, and its payload as text, JSON or bytes. */
import { useState } from "preact/hooks";
import type { Message } from "../contract";
import { bytes, dateTime } from "../format";
import { bytesOf, hexLines, prettyJson } from "../payload";
import { Code, Facts } from "./ui";

type View = "text" | "json" | "hex";

export function Payload({ message }: { message: Message }) {
  const json = message.encoding === "base64" ? null : prettyJson(message.payload);
  const first: View = message.encoding === "base64" ? "hex" : json !== null ? "json" : "text";
  const [chosen, choose] = useState<View | null>(null);
  const view = chosen ?? first;
  const data = bytesOf(message.payload, message.encoding);
  const size = message.payload_bytes ?? data.length;
  const views: [View, string, boolean][] = [
    ["text", "Text", message.encoding !== "base64"],
    ["json", "JSON", json !== null],
    ["hex", "Hex", true],
  ];
  const rows: [string, preact.ComponentChildren][] = [
    ["Topic", <Code>{message.topic}</Code>],
    ["Time", dateTime(message.time_us)],
    ["QoS", `${message.qos}${message.retain ? ", retained" : ""}`],
  ];
  if (message.publisher) rows.push(["Publisher", <Code>{message.publisher}</Code>]);
  if (message.content_type) rows.push(["Content type", message.content_type]);
  if (message.response_topic) rows.push(["Response topic", <Code>{message.response_topic}</Code>]);
  if (message.expiry_s != null) rows.push(["Expires after", `${message.expiry_s} s`]);
  for (const [name, value] of message.user_properties ?? []) rows.push([name, <Code>{value}</Code>]);
  return (
    <div class="payload">
      <Facts rows={rows} />
      <div class="segmented" role="group" aria-label="Payload as">
        {views.map(([id, label, isPossible]) => (
          <button
            key={id}
            type="button"
            aria-pressed={view === id}
            disabled={!isPossible}
            onClick={() => choose(id)}
          >
            {label}
          </button>
        ))}
        <span class="quiet">
          {bytes(size)}
          {size > data.length ? `, the first ${bytes(data.length)} shown` : ""}
        </span>
      </div>
      {view === "hex" ? (
        <Hex data={data} />
      ) : (
        <pre class="payload-text" tabIndex={0} aria-label="Payload">
          {view === "json" ? json : message.payload}
        </pre>
      )}
    </div>
  );
}

function Hex({ data }: { data: Uint8Array }) {
  const lines = hexLines(data);
  if (lines.length === 0) return <p class="empty">The payload is empty.</p>;
  return (
    <pre class="payload-text hex" tabIndex={0} aria-label="Payload in hexadecimal">
      {lines.map((line) => (
        <div key={line.offset}>
          <span class="quiet">{line.offset}</span> {line.hex.padEnd(48)} {line.text}
        </div>
      ))}
    </pre>
  );
}
