/**
 * Serves the built dashboard and a made-up cluster: `npm run mock`, then open the address it prints.
 *
 *   --port N          0 takes any free port
 *   --login           ask for a password (admin / admin)
 *   --without-users   answer 501 for users and rules, as a node does that does not keep them
 *
 * `POST /mock/kill/NODE`, `/mock/revive/NODE` and `/mock/silence/MS` change the world, for tests.
 */
import { readFile, readdir } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { World, aMessage, nowUs, subscriptions } from "./world.mjs";

const BUILT = fileURLToPath(new URL("../../src/millrace/node/doors/http/assets/dashboard/", import.meta.url));
/** As in src/millrace/node/doors/http/guard.py; a test compares the two. */
const PAGE_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Answers like a node. Returns the server, listening, with `world` on it. */
export async function serve({ port = 0, needsLogin = false, hasUsers = true } = {}) {
  const world = new World();
  const state = { world, needsLogin, hasUsers, isLoggedIn: false, silentUntil: 0 };
  const server = createServer((request, response) => {
    answer(state, request, response).catch((error) => {
      const status = error instanceof Problem ? error.status : 500;
      json(
        response,
        status,
        { type: "about:blank", title: "Error", status, detail: error.message },
        "application/problem+json",
      );
    });
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  server.world = world;
  server.state = state;
  return server;
}

function json(response, status, body, type = "application/json") {
  response.writeHead(status, { "content-type": type, "cache-control": "no-store" });
  response.end(body === undefined ? "" : JSON.stringify(body));
}

async function bodyOf(request) {
  let text = "";
  for await (const piece of request) text += piece;
  return text === "" ? {} : JSON.parse(text);
}

async function answer(state, request, response) {
  const url = new URL(request.url, "http://mock");
  const parts = url.pathname.split("/").slice(1).map(decodeURIComponent);
  if (parts[0] === "mock") return control(state, parts, response);
  if (Date.now() < state.silentUntil) return void request.socket.destroy();
  if (parts[0] === "" || parts[0] === "assets") return file(parts, response);
  const body = request.method === "GET" ? {} : await bodyOf(request);
  const isOpen = ["me", "login", "logout"].includes(parts[1]);
  if (state.needsLogin && !state.isLoggedIn && !isOpen) throw new Problem(401, "a user name is needed");
  if (parts[0] === "status") return json(response, 200, { routed: routed() });
  const route = ROUTES[`${request.method} ${parts[1]}`];
  if (parts[0] !== "v1" || route === undefined) throw new Problem(404, "Not Found");
  const found = await route({
    state,
    world: state.world,
    parts: parts.slice(2),
    query: url.searchParams,
    body,
    request,
    response,
  });
  if (!response.headersSent) json(response, found === undefined ? 204 : 200, found);
}

function control(state, [, verb, argument], response) {
  if (verb === "kill") state.world.kill(argument);
  if (verb === "revive") state.world.revive(argument);
  if (verb === "silence") {
    state.silentUntil = Date.now() + Number(argument);
    for (const stream of open) stream.destroy();
  }
  json(response, 204);
}

async function file(parts, response) {
  const name = parts[0] === "" ? "index.html" : parts[1];
  const folder = parts[0] === "" ? BUILT : join(BUILT, "assets");
  if (!(await readdir(folder).catch(() => [])).includes(name))
    throw new Problem(404, "run npm run build first");
  response.writeHead(200, { "content-type": TYPES[extname(name)], "content-security-policy": PAGE_POLICY });
  response.end(await readFile(join(folder, name)));
}

function routed() {
  return {
    announced: 14,
    unannounced: 0,
    version: 91,
    peers: { "5f3174eaf54e2c7dfa7830168df5f3fa": 31, "9edc57bdf22ff66b0893e909b6dd2459": 0 },
    retained: 6,
    tombstones: 1,
  };
}

const open = new Set();

function eventStream(response) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  open.add(response);
  response.on("close", () => open.delete(response));
  return (event, data) => response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}

function live({ world, response }) {
  const send = eventStream(response);
  const say = (event) => send("event", event);
  world.listeners.add(say);
  send("overview", world.overview());
  const timer = setInterval(() => send("overview", world.overview()), 1000);
  response.on("close", () => {
    clearInterval(timer);
    world.listeners.delete(say);
  });
}

function tail({ world, query, response }) {
  const filter = query.get("filter") ?? "";
  if (filter === "" || (filter.includes("#") && !filter.endsWith("#")))
    throw new Problem(400, `'${filter}' is not a topic filter`);
  const send = eventStream(response);
  let number = 0;
  const timer = setInterval(() => {
    const message = aMessage(number++);
    const isWanted = filter === "#" || message.topic.startsWith(filter.replace(/[#+].*$/, ""));
    if (isWanted)
      send("message", {
        user_properties: [],
        encoding: "utf-8",
        ...message,
        time_us: nowUs(),
        payload_bytes: message.payload.length,
      });
    if (number % 20 === 0) send("skipped", { count: 12 });
  }, 250);
  response.on("close", () => clearInterval(timer));
  void world;
}

function page(rows, query, nameOf) {
  const limit = Number(query.get("limit") ?? 100);
  const from = Number(query.get("cursor") ?? 0);
  const search = query.get("search") ?? "";
  const node = query.get("node") ?? "";
  const fitting = rows.filter((row) => nameOf(row).includes(search) && (node === "" || row.node === node));
  const next = from + limit < fitting.length ? String(from + limit) : null;
  return { items: fitting.slice(from, from + limit), next, missing: [] };
}

function one(rows, id, what) {
  const found = rows.find((row) => row.client_id === id || row.name === id);
  if (found === undefined) throw new Problem(404, `there is no ${what} '${id}'`);
  return found;
}

function withUsers(state) {
  if (!state.hasUsers) throw new Problem(501, "users are kept in files here");
}

const ROUTES = {
  "GET me": ({ state }) => ({
    user: state.isLoggedIn ? "admin" : null,
    is_admin: !state.needsLogin || state.isLoggedIn,
    roles: state.isLoggedIn ? ["admin"] : [],
    login_needed: state.needsLogin && !state.isLoggedIn,
  }),
  "POST login": ({ state, body }) => {
    if (body.user !== "admin" || body.password !== "admin")
      throw new Problem(401, "the user name or password is wrong");
    state.isLoggedIn = true;
    return { user: "admin", roles: ["admin"] };
  },
  "POST logout": ({ state }) => {
    state.isLoggedIn = false;
  },
  "GET overview": ({ world }) => world.overview(),
  "GET live": live,
  "GET tail": tail,
  "GET streams": ({ world, parts, query }) => {
    const [name, , shard, what] = parts;
    if (name === undefined) return { streams: world.streams() };
    const stream = one(world.streams(), name, "stream");
    if (shard === undefined) return stream;
    const row = stream.shard_list.find((found) => found.shard === Number(shard));
    if (row === undefined) throw new Problem(404, `stream '${name}' has no shard ${shard}`);
    if (what === "offset") {
      const age_us = nowUs() - Number(query.get("time_us"));
      const offset = Math.max(row.first_offset, row.next_offset - Math.floor(age_us / 90_000));
      return {
        offset: Math.min(offset, row.next_offset),
        first_offset: row.first_offset,
        next_offset: row.next_offset,
      };
    }
    const from = query.get("from") ?? "earliest";
    if (Number(from) > row.next_offset)
      throw new Problem(409, `offset ${from} is not there yet; the next is ${row.next_offset}`);
    return world.messages(
      name,
      Number(shard),
      from,
      Number(query.get("limit") ?? 100),
      query.get("filter") ?? "#",
    );
  },
  "POST streams": () => ({}),
  "DELETE streams": () => undefined,
  "GET groups": ({ world, parts }) => {
    if (parts.length === 0) return { groups: world.groups() };
    const found = world.group(parts.join("/"));
    if (found === null) throw new Problem(404, `there is no group '${parts.join("/")}'`);
    return found;
  },
  "POST groups": ({ world, parts, body }) => {
    world.say("mill-1", "group", "info", `group ${parts[0]} was reset to ${body.to}`, {});
    return {};
  },
  "DELETE groups": () => undefined,
  "GET pipelines": ({ world }) => ({ pipelines: world.pipelines() }),
  "DELETE pipelines": () => undefined,
  "GET clients": ({ world, parts, query }) => {
    if (parts.length === 0) return page(world.clients, query, (row) => row.client_id);
    return {
      ...one(world.clients, parts[0], "client"),
      filters: subscriptions(),
      will_topic: "sensors/lost",
      session_expiry_s: 3600,
    };
  },
  "POST clients": ({ world, parts }) => {
    world.clients = world.clients.filter((row) => row.client_id !== parts[0]);
    world.say("mill-1", "client", "info", `client ${parts[0]} was disconnected by an administrator`, {});
  },
  "GET sessions": ({ world, parts, query }) => {
    if (parts.length === 0) return page(world.sessions, query, (row) => row.client_id);
    const cursors = [
      { shard: 17, offset: 24_060_300, lag: 152 },
      { shard: 18, offset: 24_052_452, lag: 0 },
    ];
    return { ...one(world.sessions, parts[0], "session"), filters: subscriptions(), cursors };
  },
  "DELETE sessions": ({ world, parts }) => {
    world.sessions = world.sessions.filter((row) => row.client_id !== parts[0]);
  },
  "GET events": ({ world, query }) => {
    const kind = query.get("kind") ?? "";
    return page(
      world.events.filter((event) => kind === "" || event.kind === kind),
      query,
      () => "",
    );
  },
  "GET trace": ({ world, query }) => ({
    topic: query.get("topic"),
    stream: "sensors",
    replication: "quorum",
    shard: 17,
    leader: world.lead(3),
    next_offset: 24_060_452,
    is_captured: { 0: true, 1: true, 2: true },
    receivers: [
      { client_id: "reporter", node: "mill-2", filter: "sensors/#", qos: 1, kind: "session" },
      { client_id: "billing", node: "mill-1", filter: "sensors/+/meter", qos: 1, kind: "group" },
    ],
    retained: false,
  }),
  "POST publish": ({ world, body }) => {
    if (body.topic.includes("#")) throw new Problem(400, "a topic has no wildcards");
    world.published.push(body);
    return { topic: body.topic, shard: 17, offset: 24_060_452 + world.published.length, duplicate: false };
  },
  "POST cluster": ({ world, parts, body }) => {
    if (body.draining) world.draining.add(parts[1]);
    else world.draining.delete(parts[1]);
    return {};
  },
  "DELETE cluster": () => undefined,
  "GET users": ({ state, world, query }) => {
    withUsers(state);
    return page(world.users, query, (row) => row.name);
  },
  "POST users": ({ world, body }) => {
    if (world.users.some((user) => user.name === body.name))
      throw new Problem(409, `there is a user '${body.name}'`);
    world.users.push({ name: body.name, roles: body.roles, has_password: true, tokens: 0 });
    return {};
  },
  "DELETE users": ({ world, parts }) => {
    world.users = world.users.filter((user) => user.name !== parts[0]);
  },
  "GET rules": ({ state, world, query }) => {
    withUsers(state);
    return page(world.rules, query, () => "");
  },
  "POST rules": ({ world, body }) => {
    world.rules.push({ number: world.rules.length + 1, ...body });
    return {};
  },
  "DELETE rules": ({ world, parts }) => {
    world.rules = world.rules.filter((rule) => String(rule.number) !== parts[0]);
  },
};

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const at = process.argv.indexOf("--port");
  const server = await serve({
    port: at > 0 ? Number(process.argv[at + 1]) : 18890,
    needsLogin: process.argv.includes("--login"),
    hasUsers: !process.argv.includes("--without-users"),
  });
  console.log(`http://127.0.0.1:${server.address().port}/`);
}
