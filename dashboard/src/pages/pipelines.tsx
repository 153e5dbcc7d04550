/** Spark pipelines: those that the cluster runs, and those that tell the node that answers of themselves. */
import { useEffect, useState } from "preact/hooks";
import { me, mayOperate, path, post, remove } from "../api";
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
          There is no pipeline. Let the cluster run one with <code>millrace pipeline create FILE</code>, or
          run it yourself with <code>millrace pipeline run FILE</code>.
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
  const isOurs = pipeline.is_declared === true;
  const forget = () =>
    ask({
      title: isOurs ? `Delete pipeline ${pipeline.name}?` : `Forget pipeline ${pipeline.name}?`,
      body: isOurs ? (
        <p>It is stopped, and the cluster forgets its file. Its checkpoints stay where they are.</p>
      ) : (
        <p>Its last report goes. The pipeline itself is not stopped: if it runs, it will report again.</p>
      ),
      verb: isOurs ? "Delete" : "Forget",
      act: async () => {
        await remove(path(["v1", "pipelines", pipeline.name]));
        reload();
      },
      done: isOurs ? `${pipeline.name} is deleted` : `${pipeline.name} is forgotten`,
    });
  const stop = () =>
    ask({
      title: `Stop pipeline ${pipeline.name}?`,
      body: <p>The batch that runs may end. It stays stopped until it is restarted.</p>,
      verb: "Stop",
      act: async () => {
        await post(path(["v1", "pipelines", pipeline.name, "stop"]));
        reload();
      },
      done: `${pipeline.name} is stopped`,
    });
  const [showsLog, setShowsLog] = useState(false);
  const hasEnded = ["stopped", "failed"].includes(pipeline.state);
  const restart = () =>
    ask({
      title: `Restart pipeline ${pipeline.name}?`,
      body: (
        <p>
          {isOurs
            ? "Another driver goes on at the checkpoint."
            : "Its supervisor stops the driver and starts another one, which goes on at the checkpoint. It hears of this with its next report, within some seconds."}
        </p>
      ),
      verb: "Restart",
      act: async () => {
        await post(path(["v1", "pipelines", pipeline.name, "restart"]));
        reload();
      },
      done: isOurs ? `${pipeline.name} is started again` : `${pipeline.name} is asked to restart`,
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
          {isOurs && <Badge tone="neutral">{pipeline.node ? `on ${pipeline.node}` : "on no node"}</Badge>}{" "}
          <span class={isOld && !hasEnded ? "lag" : "quiet"}>reported {ago(pipeline.time_us, now)}</span>{" "}
          {pipeline.ui !== undefined && isWeb(pipeline.ui) && (
            <a href={pipeline.ui} target="_blank" rel="noopener noreferrer">
              Spark’s pages
            </a>
          )}
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
          {mayOperate() && isOurs && pipeline.state !== "stopped" && (
            <button type="button" class="small" aria-label={`Stop pipeline ${pipeline.name}`} onClick={stop}>
              Stop…
            </button>
          )}
          {mayOperate() && (isOurs || !hasEnded) && (
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
          {(isOurs ? me.value?.is_admin : mayOperate()) && (
            <button
              type="button"
              class="small danger-quiet"
              aria-label={`${isOurs ? "Delete" : "Forget"} pipeline ${pipeline.name}`}
              onClick={forget}
            >
              {isOurs ? "Delete…" : "Forget…"}
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

/** Whether a report names an address that a page may link to: a driver writes it. */
function isWeb(address: string): boolean {
  return /^https?:\/\//.test(address);
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
