/** Publishing one message, and where a message of a topic would go. */
import { useState } from "preact/hooks";
import { get, messageOf, path, post } from "../api";
import type { Trace } from "../contract";
import { count, plural } from "../format";
import { prettyJson } from "../payload";
import { Code, Facts, Field, NodeLink, Notice, PageHead, Panel, Table } from "../components/ui";
import { href, route } from "../router";

interface Published {
  topic: string;
  shard: number | null;
  offset: number | null;
}

export function PublishPage() {
  const [topic, setTopic] = useState(route.value.query.topic ?? "");
  const [payload, setPayload] = useState("");
  const [qos, setQos] = useState(1);
  const [retain, setRetain] = useState(false);
  const [contentType, setContentType] = useState("");
  const [done, setDone] = useState<Published | null>(null);
  const [trace, setTrace] = useState<Trace | null>(null);
  const [failure, setFailure] = useState("");
  const [isBusy, setBusy] = useState(false);

  const attempt = async (act: () => Promise<void>) => {
    setBusy(true);
    setFailure("");
    try {
      await act();
    } catch (error) {
      setFailure(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  const publish = () =>
    attempt(async () => {
      const body = {
        topic,
        payload,
        qos,
        retain,
        ...(contentType === "" ? {} : { content_type: contentType }),
      };
      setDone(await post<Published>("/v1/publish", body));
    });
  const follow = () =>
    attempt(async () => {
      setDone(null);
      setTrace(await get<Trace>(path(["v1", "trace"], { topic })));
    });

  return (
    <>
      <PageHead title="Publish" note="The answer comes once the message is stored as its stream promises." />
      <div class="split split-even">
        <form
          class="panel form"
          aria-label="Publish a message"
          onSubmit={(event) => {
            event.preventDefault();
            void publish();
          }}
        >
          <Field label="Topic">
            {(id) => (
              <input
                id={id}
                type="text"
                required
                spellcheck={false}
                autocomplete="off"
                value={topic}
                onInput={(event) => setTopic(event.currentTarget.value)}
              />
            )}
          </Field>
          <Field label="Payload" {...(prettyJson(payload) !== null ? { hint: "This is valid JSON." } : {})}>
            {(id) => (
              <textarea
                id={id}
                rows={8}
                spellcheck={false}
                value={payload}
                onInput={(event) => setPayload(event.currentTarget.value)}
              />
            )}
          </Field>
          <div class="row">
            <Field label="QoS">
              {(id) => (
                <select id={id} value={qos} onChange={(event) => setQos(Number(event.currentTarget.value))}>
                  <option value="1">1, at least once</option>
                  <option value="2">2, exactly once</option>
                </select>
              )}
            </Field>
            <Field label="Content type" class="grow">
              {(id) => (
                <input
                  id={id}
                  type="text"
                  placeholder="none"
                  value={contentType}
                  onInput={(event) => setContentType(event.currentTarget.value)}
                />
              )}
            </Field>
          </div>
          <label class="check">
            <input
              type="checkbox"
              checked={retain}
              onChange={(event) => setRetain(event.currentTarget.checked)}
            />{" "}
            Retain: later subscribers get it too
          </label>
          <div class="actions">
            <button type="submit" class="primary" disabled={isBusy || topic === ""}>
              Publish
            </button>
            <button type="button" disabled={isBusy || topic === ""} onClick={() => void follow()}>
              Where would it go?
            </button>
          </div>
          {failure !== "" && <Notice tone="bad">{failure}</Notice>}
          {done !== null && failure === "" && <Receipt done={done} />}
        </form>
        {trace === null ? (
          <Panel title="Where would it go?">
            <p class="empty">
              Name a topic and ask: its stream, its shard and those who receive it are shown here, and nothing
              is published.
            </p>
          </Panel>
        ) : (
          <Route trace={trace} />
        )}
      </div>
    </>
  );
}

function Receipt({ done }: { done: Published }) {
  return (
    <Notice tone="good">
      Published to <Code>{done.topic}</Code>
      {done.shard == null ? (
        ", which is stored nowhere"
      ) : (
        <>
          {" "}
          in shard {done.shard} at offset {count(done.offset)}
        </>
      )}
      .
    </Notice>
  );
}

function Route({ trace }: { trace: Trace }) {
  const captured = ["0", "1", "2"].filter((qos) => trace.is_captured[qos]);
  return (
    <Panel title="Where would it go?" note={<Code>{trace.topic}</Code>}>
      <Facts
        rows={[
          ["Stream", <a href={href("streams", [trace.stream])}>{trace.stream}</a>],
          ["Replication", trace.replication],
          ["Shard", trace.shard === null ? "none" : String(trace.shard)],
          ["Leader", <NodeLink node={trace.leader} />],
          ["Next offset", count(trace.next_offset)],
          ["Stored at QoS", captured.length > 0 ? captured.join(", ") : "none"],
          ["Retained message", trace.retained ? "yes" : "no"],
        ]}
      />
      <h3>{plural(trace.receivers.length, "receiver")}</h3>
      <Table
        label="Receivers"
        columns={[
          { name: "Receiver", show: (row) => <span class="id">{row.client_id}</span> },
          { name: "Kind", show: (row) => row.kind },
          { name: "Filter", show: (row) => <Code>{row.filter}</Code> },
          { name: "QoS", number: true, show: (row) => row.qos },
          { name: "Node", show: (row) => <NodeLink node={row.node} /> },
        ]}
        rows={trace.receivers}
        keyOf={(row) => `${row.client_id}/${row.filter}/${row.kind}`}
        empty="Nobody receives it now."
      />
    </Panel>
  );
}
