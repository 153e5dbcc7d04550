/** The frame of every page: header, navigation, banner, and the page that the address names. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, get, identify, me, messageOf } from "./api";
import { Announcer } from "./components/announcer";
import { Dialog, Toast } from "./components/dialog";
import { Header, Banner } from "./components/header";
import { connection, start, trouble } from "./live";
import { href, route, type Route } from "./router";
import { AccessPage } from "./pages/access";
import { ClientPage, SessionPage } from "./pages/client";
import { ClientsPage, SessionsPage } from "./pages/clients";
import { ClusterPage } from "./pages/cluster";
import { EventsPage } from "./pages/events";
import { GroupPage, GroupsPage } from "./pages/groups";
import { LoginPage } from "./pages/login";
import { MessagesPage } from "./pages/messages";
import { NodePage } from "./pages/node";
import { PipelinesPage } from "./pages/pipelines";
import { PublishPage } from "./pages/publish";
import { StreamPage } from "./pages/stream";
import { StreamsPage } from "./pages/streams";
import { TailPage } from "./pages/tail";

/** Whether the node keeps users that can be shown: the page of a node without them is hidden. */
const hasUsers = signal(false);
const isMenuOpen = signal(false);

const PAGES: readonly { id: string; label: string; also?: string }[] = [
  { id: "cluster", label: "Cluster" },
  { id: "streams", label: "Streams" },
  { id: "messages", label: "Messages" },
  { id: "clients", label: "Clients and sessions", also: "sessions" },
  { id: "groups", label: "Groups" },
  { id: "pipelines", label: "Pipelines" },
  { id: "events", label: "Events" },
  { id: "publish", label: "Publish" },
  { id: "access", label: "Users and rules" },
];

async function begin(): Promise<void> {
  try {
    await identify();
  } catch (error) {
    connection.value = "broken";
    trouble.value = messageOf(error);
    setTimeout(() => void begin(), 1000);
  }
}

async function lookForUsers(): Promise<void> {
  try {
    await get("/v1/users?limit=1");
    hasUsers.value = true;
  } catch (error) {
    hasUsers.value = error instanceof ApiError && ![403, 404, 501].includes(error.status);
  }
}

export function App() {
  const who = me.value;
  useEffect(() => void begin(), []);
  useEffect(() => {
    if (who !== null && !who.login_needed) {
      start();
      if (who.is_admin) void lookForUsers();
    }
  }, [who?.login_needed, who?.user]);

  if (who?.login_needed) return <LoginPage />;
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <Header isMenuOpen={isMenuOpen.value} toggleMenu={() => (isMenuOpen.value = !isMenuOpen.value)} />
      <Navigation current={route.value.page} />
      <div class="content">
        <Banner />
        <Main route={route.value} />
      </div>
      <Dialog />
      <Toast />
      <Announcer />
    </div>
  );
}

/** The fragment is the page here, so the browser's own jump would leave it. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Navigation({ current }: { current: string }) {
  const pages = PAGES.filter((page) => page.id !== "access" || hasUsers.value);
  return (
    <nav class={`navigation ${isMenuOpen.value ? "is-open" : ""}`} id="navigation" aria-label="Pages">
      <div class="navigation-inside">
        <ul>
          {pages.map((page) => (
            <li key={page.id}>
              <a
                href={href(page.id)}
                onClick={() => (isMenuOpen.value = false)}
                {...(page.id === current || page.also === current ? { "aria-current": "page" as const } : {})}
              >
                {page.label}
              </a>
            </li>
          ))}
        </ul>
        <p class="outside">
          <a href="/docs">HTTP API</a>
        </p>
      </div>
    </nav>
  );
}

function Main({ route: where }: { route: Route }) {
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  const address = [where.page, ...where.path].join("/");
  const label = PAGES.find((page) => page.id === where.page || page.also === where.page)?.label;
  useEffect(() => {
    document.title = `${[...where.path.slice(0, 1), label ?? "Not found"].join(" – ")} – Millrace`;
    // Whoever followed a link by keyboard or by ear is taken to the new page.
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    if (!isFirst.current) scrollTo(0, 0);
    isFirst.current = false;
  }, [address]);
  return (
    <main id="content" ref={main} tabIndex={-1} key={address}>
      <Page route={where} />
    </main>
  );
}

function Page({ route: where }: { route: Route }) {
  const name = where.path[0];
  switch (where.page) {
    case "cluster":
      return name === undefined ? <ClusterPage /> : <NodePage name={name} />;
    case "streams":
      return name === undefined ? <StreamsPage /> : <StreamPage name={name} />;
    case "messages":
      return name === "tail" ? <TailPage /> : <MessagesPage />;
    case "clients":
      return name === undefined ? <ClientsPage /> : <ClientPage id={name} />;
    case "sessions":
      return name === undefined ? <SessionsPage /> : <SessionPage id={name} />;
    case "groups":
      return name === undefined ? <GroupsPage /> : <GroupPage name={name} />;
    case "pipelines":
      return <PipelinesPage />;
    case "events":
      return <EventsPage />;
    case "publish":
      return <PublishPage />;
    case "access":
      return <AccessPage />;
    default:
      return (
        <>
          <h1>Not found</h1>
          <p class="empty">
            There is no page of this name. <a href={href("cluster")}>Go to the cluster</a>.
          </p>
        </>
      );
  }
}
