/** Messages as they are published: a live tail of a filter. */
import { useEffect, useRef, useState } from "preact/hooks";
import { path } from "../api";
import type { Message } from "../contract";
import { count, plural } from "../format";
import { MessageList } from "../components/messages";
import { Field, Notice, PageHead, State, Tabs } from "../components/ui";
import { href, replace, route } from "../router";
import { MESSAGE_TABS } from "./messages";

const KEPT_MAX = 200;
/** What comes is shown a few times a second, however fast it comes. */
const SHOWN_EVERY_MS = 250;

export function TailPage() {
  const filter = route.value.query.filter ?? "";
  const [wanted, setWanted] = useState(filter || "#");
  const [messages, setMessages] = useState<readonly Message[]>([]);
  const [seen, setSeen] = useState(0);
  const [skipped, setSkipped] = useState(0);
  const [isPaused, setPaused] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const [failure, setFailure] = useState("");
  const paused = useRef(false);
  paused.current = isPaused;

  useEffect(() => {
    if (filter === "") return;
    setMessages([]);
    setSeen(0);
    setSkipped(0);
    setFailure("");
    let seen_ = 0;
    let skipped_ = 0;
    let fresh: Message[] = [];
    const show = setInterval(() => {
      setSeen(seen_);
      setSkipped(skipped_);
      if (fresh.length === 0) return;
      const newest = fresh.reverse();
      fresh = [];
      setMessages((before) => [...newest, ...before].slice(0, KEPT_MAX));
    }, SHOWN_EVERY_MS);
    const source = new EventSource(path(["v1", "tail"], { filter, limit_per_s: 50 }));
    source.addEventListener("open", () => setOpen(true));
    source.addEventListener("message", (event: MessageEvent<string>) => {
      seen_ += 1;
      if (!paused.current) fresh.push({ ...(JSON.parse(event.data) as Message), seen: seen_ });
    });
    source.addEventListener("skipped", (event: MessageEvent<string>) => {
      skipped_ += (JSON.parse(event.data) as { count: number }).count;
    });
    source.addEventListener("error", () => {
      setOpen(false);
      if (source.readyState === EventSource.CLOSED) {
        setFailure("The node refused the tail: is the filter a valid one, and may you subscribe to it?");
      }
    });
    return () => {
      source.close();
      clearInterval(show);
      setOpen(false);
    };
  }, [filter]);

  return (
    <>
      <PageHead title="Messages" note="What is published from now on, at any node, as your rights allow." />
      <Tabs label="Messages" tabs={MESSAGE_TABS} current="tail" />
      <form
        class="toolbar"
        onSubmit={(event) => {
          event.preventDefault();
          replace(href("messages", ["tail"], { filter: wanted }));
        }}
      >
        <Field label="Topic filter" class="grow">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              spellcheck={false}
              value={wanted}
              onInput={(event) => setWanted(event.currentTarget.value)}
            />
          )}
        </Field>
        <button type="submit" class="primary">
          {filter === "" ? "Start" : "Start anew"}
        </button>
        <button
          type="button"
          disabled={filter === ""}
          aria-pressed={isPaused}
          onClick={() => setPaused(!isPaused)}
        >
          Pause
        </button>
        <button type="button" disabled={filter === ""} onClick={() => replace(href("messages", ["tail"]))}>
          Stop
        </button>
      </form>
      {failure !== "" && <Notice tone="bad">{failure}</Notice>}
      {filter !== "" && failure === "" && (
        <section class="panel" aria-label="Messages seen">
          <div class="panel-head">
            <State tone={isPaused ? "warning" : isOpen ? "good" : "warning"}>
              {isPaused ? "paused" : isOpen ? "live" : "connecting"}
            </State>
            <p class="note">
              {plural(seen, "message")} seen
              {skipped > 0 && `, ${count(skipped)} skipped because they came too fast`}
            </p>
          </div>
          {messages.length === 0 && <p class="empty">Nothing was published on this filter yet.</p>}
          <MessageList messages={messages} label="Messages seen" />
        </section>
      )}
      {filter === "" && <p class="empty">Name a filter, such as # for everything, and start.</p>}
    </>
  );
}
