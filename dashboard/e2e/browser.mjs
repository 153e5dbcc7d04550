/** Starts Debian's Chromium, and knows every page of the dashboard. */
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";
import { HOSTILE } from "../mock/world.mjs";

const KNOWN = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

const id = (text) => encodeURIComponent(text);

/** Name of the page, its address, and a heading that is there once it has loaded. */
export const PAGES = [
  ["cluster", "#/cluster", "Cluster"],
  ["node", "#/cluster/mill-2", "mill-2"],
  ["streams", "#/streams", "Streams"],
  ["stream-quorum", "#/streams/sensors", "sensors"],
  ["stream-primary-backup", "#/streams/orders", "orders"],
  ["stream-leaderless", "#/streams/logs", "logs"],
  ["stream-routed", "#/streams/chat", "chat"],
  ["messages", "#/messages?stream=sensors&shard=17&from=24000000", "Messages"],
  ["tail", "#/messages/tail?filter=%23", "Messages"],
  ["clients", "#/clients", "Clients and sessions"],
  ["client", `#/clients/${id(HOSTILE.client)}`, HOSTILE.client],
  ["sessions", "#/sessions", "Clients and sessions"],
  ["session", "#/sessions/reporter", "reporter"],
  ["groups", "#/groups", "Groups"],
  ["group", "#/groups/audit", "audit"],
  ["pipelines", "#/pipelines", "Pipelines"],
  ["events", "#/events", "Events"],
  ["publish", "#/publish", "Publish"],
  ["access", "#/access", "Users and rules"],
];

export function findChromium() {
  const path = process.env.CHROMIUM ?? KNOWN.find((candidate) => existsSync(candidate));
  if (path === undefined)
    throw new Error("no Chromium here: apt-get install chromium, or name it in CHROMIUM");
  return path;
}

export function launch() {
  return chromium.launch({
    executablePath: findChromium(),
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}

/** A page whose faults are collected: errors of scripts, of the console and of the security policy. */
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) faults.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`exception: ${error.message}`));
  return { page, faults, close: () => context.close() };
}

export async function visit(page, base, address, heading) {
  await page.goto(`${base}/${address}`);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
}
