/** Messages as a list whose rows open. */
import { useState } from "preact/hooks";
import type { Message } from "../contract";
import { bytes, clock, count, dateTime } from "../format";
import { bytesOf, preview } from "../payload";
import { Badge } from "./ui";
import { Payload } from "./payload";

/** A row keeps its key while others come in above it, so that only the new ones are drawn. */
function keyOf(message: Message): number {
  return message.offset ?? message.seen ?? message.time_us;
}

function sizeOf(message: Message): number {
  return message.payload_bytes ?? bytesOf(message.payload, message.encoding).length;
}

export function MessageList({ messages, label }: { messages: readonly Message[]; label: string }) {
  const [open, setOpen] = useState<Message | null>(null);
  const hasOffsets = messages[0]?.offset !== undefined;
  if (messages.length === 0) return null;
  return (
    <div class="table-box" role="region" aria-label={label} tabIndex={0}>
      <table class="messages">
        <thead>
          <tr>
            <th scope="col">Topic</th>
            {hasOffsets && (
              <th scope="col" class="number">
                Offset
              </th>
            )}
            <th scope="col">Time</th>
            <th scope="col" class="number minor">
              QoS
            </th>
            <th scope="col" class="number">
              Size
            </th>
            <th scope="col" class="wide">
              Payload
            </th>
          </tr>
        </thead>
        <tbody>
          {messages.map((message) => (
            <Row
              key={keyOf(message)}
              message={message}
              hasOffsets={hasOffsets}
              isOpen={open === message}
              toggle={() => setOpen(open === message ? null : message)}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row(props: { message: Message; hasOffsets: boolean; isOpen: boolean; toggle: () => void }) {
  const { message, hasOffsets, isOpen } = props;
  return (
    <>
      <tr class={isOpen ? "open" : ""}>
        <th scope="row">
          <button type="button" class="row-button" aria-expanded={isOpen} onClick={props.toggle}>
            <span class="chevron" aria-hidden="true" />
            <span class="topic">{preview(message.topic, undefined, 120)}</span>
          </button>
        </th>
        {hasOffsets && <td class="number">{count(message.offset)}</td>}
        <td title={dateTime(message.time_us)}>{clock(message.time_us)}</td>
        <td class="number minor">
          {message.qos} {message.retain && <Badge tone="neutral">retained</Badge>}
        </td>
        <td class="number">{bytes(sizeOf(message))}</td>
        <td class="wide preview">{preview(message.payload, message.encoding)}</td>
      </tr>
      {isOpen && (
        <tr class="opened">
          <td colSpan={hasOffsets ? 6 : 5}>
            <Payload message={message} />
          </td>
        </tr>
      )}
    </>
  );
}
