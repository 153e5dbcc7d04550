/** Supervised Spark pipelines, as they report themselves to the node that answers. */
import { useEffect, useState } from "preact/hooks";
import { mayOperate, path, post, remove } from "../api";
import { figures } from "../live";
import type { Pipeline, PipelineLog, PipelineQuery } from "../contract";
import { ago, count, isFar, milliseconds, perSecond } from "../format";
import { ask } from "../components/dialog";
import { useResource } from "../components/resource";
import {
  Badge,
  Notice,
  PageHead,
  Panel,
  Sparkline,
  State,
  Table,
  stateTone,
  type Column,
} from "../components/ui";

const OLD_S = 30;

export function PipelinesPage() {
  const found = useResource<{ pipelines: Pipeline[] }>("/v1/pipelines", 1000);
  const pipelines = found.value?.pipelines;
  useEffect(() => {
    for (const pipeline of pipelines ?? []) {
      for (const query of pipeline.queries) {
        figures.add(`pipeline/${pipeline.name}/${query.name}`, pipeline.time_us / 1e6, query.rows_per_s);
      }
    }
  }, [pipelines]);
  return (
    <>
      <PageHead
        title="Pipelines"
        note="Each tells the nodes of itself; a report older than half a minute is marked."
      />
      {found.error !== "" && <Notice tone="bad">{found.error}</Notice>}
      {pipelines?.length === 0 && (
        <p class="empty">
          No pipeline has told this node of itself. Start one with <code>millrace pipeline run FILE</code>.
        </p>
      )}
      {pipelines?.map((pipeline) => (
        <One key={pipeline.name} pipeline={pipeline} reload={found.reload} />
      ))}
    </>
  );
}

function One({ pipeline, reload }: { pipeline: Pipeline; reload: () => void }) {
  const now = Date.now() * 1000;
  const isOld = (now - pipeline.time_us) / 1e6 > OLD_S;
  const forget = () =>
    ask({
      title: `Forget pipeline ${pipeline.name}?`,
      body: (
        <p>Its last report goes. The pipeline itself is not stopped: if it runs, it will report again.</p>
      ),
      verb: "Forget",
      act: async () => {
        await remove(path(["v1", "pipelines", pipeline.name]));
        reload();
      },
      done: `${pipeline.name} is forgotten`,
    });
  const [showsLog, setShowsLog] = useState(false);
  const hasEnded = ["stopped", "failed"].includes(pipeline.state);
  const restart = () =>
    ask({
      title: `Restart pipeline ${pipeline.name}?`,
      body: (
        <p>
          Its supervisor stops the driver and starts another one, which goes on at the checkpoint. It hears of
          this with its next report, within some seconds.
        </p>
      ),
      verb: "Restart",
      act: async () => {
        await post(path(["v1", "pipelines", pipeline.name, "restart"]));
        reload();
      },
      done: `${pipeline.name} is asked to restart`,
    });
  const columns: Column<PipelineQuery>[] = [
    { name: "Query", show: (query) => query.name },
    { name: "Batch", number: true, show: (query) => (query.batch < 0 ? "–" : count(query.batch)) },
    { name: "Rows", number: true, show: (query) => count(query.rows) },
    {
      name: "Rows per second",
      number: true,
      show: (query) => (
        <span class="with-spark">
          <Sparkline values={figures.get(`pipeline/${pipeline.name}/${query.name}`).values} />
          {perSecond(query.rows_per_s)}
        </span>
      ),
    },
    ...(pipeline.queries.some((query) => query.batch_ms != null)
      ? [{ name: "Batch took", number: true, show: (query: PipelineQuery) => milliseconds(query.batch_ms) }]
      : []),
    {
      name: "Lag",
      number: true,
      show: (query) => <span class={isFar(query.lag) ? "lag" : ""}>{count(query.lag)}</span>,
    },
  ];
  return (
    <Panel
      title={pipeline.name}
      note={
        <>
          <State tone={stateTone(pipeline.state)}>{pipeline.state}</State>{" "}
          <Badge tone={pipeline.restarts > 0 ? "warning" : "neutral"}>
            {count(pipeline.restarts)} {pipeline.restarts === 1 ? "restart" : "restarts"}
          </Badge>{" "}
          <span class={isOld ? "lag" : "quiet"}>reported {ago(pipeline.time_us, now)}</span>
        </>
      }
      actions={
        <>
          <button
            type="button"
            class="small"
            aria-expanded={showsLog}
            aria-label={`Log of pipeline ${pipeline.name}`}
            onClick={() => setShowsLog(!showsLog)}
          >
            Log
          </button>
          {mayOperate() && !hasEnded && (
            <button
              type="button"
              class="small"
              disabled={(pipeline.restart ?? "") !== ""}
              aria-label={`Restart pipeline ${pipeline.name}`}
              onClick={restart}
            >
              {(pipeline.restart ?? "") === "" ? "Restart…" : "Restart asked for"}
            </button>
          )}
          {mayOperate() && (
            <button
              type="button"
              class="small danger-quiet"
              aria-label={`Forget pipeline ${pipeline.name}`}
              onClick={forget}
            >
              Forget…
            </button>
          )}
        </>
      }
    >
      {pipeline.error !== "" && (
        <pre class="error-text" tabIndex={0} aria-label={`Last error of ${pipeline.name}`}>
          {pipeline.error}
        </pre>
      )}
      <Table
        label={`Queries of ${pipeline.name}`}
        columns={columns}
        rows={pipeline.queries}
        keyOf={(query) => query.name}
        empty="It has no query yet."
      />
      {showsLog && <Log name={pipeline.name} />}
    </Panel>
  );
}

/** The end of the driver's log, as the supervisor told it; the whole of it is a file beside the supervisor. */
function Log({ name }: { name: string }) {
  const found = useResource<PipelineLog>(path(["v1", "pipelines", name, "log"]), 2000);
  if (found.error !== "") return <Notice tone="bad">{found.error}</Notice>;
  if (found.value === null) return null;
  const { lines, place } = found.value;
  return (
    <>
      <p class="quiet">
        {lines.length === 0
          ? "The driver has written nothing, or its supervisor does not tell."
          : "The last lines of "}
        {lines.length > 0 && <code>{place}</code>}
      </p>
      {lines.length > 0 && (
        <pre class="log-text" tabIndex={0} aria-label={`Log of ${name}`}>
          {lines.join("\n")}
        </pre>
      )}
    </>
  );
}
