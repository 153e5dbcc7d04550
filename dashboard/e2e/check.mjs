/**
 * Drives every page of the dashboard in Chromium against the mock, under the node's content security policy, and
 * prints one JSON line for each check: `{"name", "ok", "detail"}`. `tests/browser/test_dashboard.py` reads them.
 */
import { serve } from "../mock/server.mjs";
import { HOSTILE } from "../mock/world.mjs";
import { launch, openPage, PAGES, visit } from "./browser.mjs";
import { axe, check, ranAsScript, verdict } from "./checks.mjs";

const server = await serve();
const base = `http://127.0.0.1:${server.address().port}`;
const browser = await launch();

/** Each page, in light and dark: it loads, says no error, runs no foreign script, and axe finds nothing. */
async function everyPage(colorScheme) {
  const { page, faults, close } = await openPage(browser, { colorScheme });
  for (const [name, address, heading] of PAGES) {
    await check(`loads/${name}/${colorScheme}`, async () => {
      await visit(page, base, address, heading);
      await page.locator(".is-live").waitFor();
      if (name === "tail") await page.locator(".row-button").nth(1).waitFor();
      const found = faults.splice(0);
      return found.join("; ");
    });
    await check(`axe/${name}/${colorScheme}`, () => axe(page));
    await check(`width/${name}/${colorScheme}`, () => fits(page));
  }
  await check(`hostile/${colorScheme}`, () => ranAsScript(page));
  await close();
}

/** At 400 pixels nothing but the insides of tables goes beyond the edge. */
async function fits(page) {
  await page.setViewportSize({ width: 400, height: 800 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  await page.setViewportSize({ width: 1360, height: 900 });
  return width <= 400 ? "" : `the page is ${width} pixels wide on a screen of 400`;
}

async function hostileText() {
  const { page, close } = await openPage(browser);
  const places = [
    ["client id", "#/clients", HOSTILE.client],
    ["user", "#/access", HOSTILE.user],
    ["topic", "#/messages?stream=sensors&shard=17&from=24000000", HOSTILE.topic],
    ["payload", "#/messages?stream=sensors&shard=17&from=24000000", HOSTILE.payload],
    ["event", "#/events", HOSTILE.event],
    ["group", "#/groups", `queue:${HOSTILE.topic}`],
    ["error of a pipeline", "#/pipelines", HOSTILE.payload],
  ];
  for (const [what, address, text] of places) {
    await check(`text/${what}`, async () => {
      await page.goto(`${base}/${address}`);
      await page.getByText(text).first().waitFor();
      return ranAsScript(page);
    });
  }
  await check("text/opened message", async () => {
    await page.goto(`${base}/#/messages?stream=sensors&shard=17&from=24000004`);
    const row = page.getByRole("button", { name: HOSTILE.topic }).first();
    await row.click();
    await page.locator(".payload-text", { hasText: HOSTILE.payload }).waitFor();
    await page.getByRole("button", { name: "Hex" }).click();
    await page.locator(".hex", { hasText: "3c 62 20 6f" }).waitFor();
  });
  await close();
}

async function keyboard() {
  const { page, faults, close } = await openPage(browser);
  await check("keyboard/skip link", async () => {
    await visit(page, base, "#/cluster", "Cluster");
    await page.keyboard.press("Tab");
    const first = await page.evaluate(() => document.activeElement?.textContent);
    if (first !== "Skip to the content") return `the first stop is ${first}`;
    await page.keyboard.press("Enter");
    const place = await page.evaluate(() => document.activeElement?.id);
    return place === "content" ? "" : `the link leads to ${place}`;
  });
  await check("keyboard/navigation", async () => {
    await page.getByRole("link", { name: "Events" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: "Events" }).waitFor();
    const place = await page.evaluate(() => document.activeElement?.id);
    return place === "content" ? "" : `after a page was chosen the focus is at ${place}`;
  });
  await check("keyboard/question", async () => {
    await visit(page, base, "#/sessions", "Clients and sessions");
    const opener = page.getByRole("button", { name: "Delete the session of reporter" });
    await opener.focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Delete the session of reporter?" }).waitFor();
    const chosen = await page.evaluate(() => document.activeElement?.textContent);
    if (chosen !== "Cancel") return `the question begins at ${chosen}, not at Cancel`;
    const found = await axe(page);
    if (found !== "") return found;
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    if (!server.world.sessions.some((session) => session.client_id === "reporter"))
      return "Escape deleted it";
    await opener.focus();
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByText("The session of reporter is deleted").waitFor();
    await opener.waitFor({ state: "detached" });
  });
  await check("keyboard/no faults", async () => faults.join("; "));
  await close();
}

async function figures() {
  const { page, close } = await openPage(browser);
  await check("live/figures move", async () => {
    await visit(page, base, "#/cluster", "Cluster");
    const tile = page.locator(".tile").nth(2);
    const before = await tile.textContent();
    await page.waitForFunction(
      (text) => document.querySelectorAll(".tile")[2]?.textContent !== text,
      before,
      { timeout: 5000 },
    );
  });
  await check("live/a kill is seen within two seconds", async () => {
    server.world.kill("mill-2");
    const began = Date.now();
    await page.getByRole("link", { name: /mill-2\s*unreachable/ }).waitFor({ timeout: 2000 });
    await page
      .locator("[aria-live=assertive]", { hasText: "Node mill-2 is unreachable." })
      .waitFor({ state: "attached" });
    await page.getByText("mill-1 leads", { exact: true }).waitFor();
    const found = await axe(page);
    if (found !== "") return found;
    server.world.revive("mill-2");
    return Date.now() - began < 20_000 ? "" : "it took too long";
  });
  await check("live/a flood of events is drawn in bounds", async () => {
    await visit(page, base, "#/events", "Events");
    await page.locator(".event").first().waitFor();
    for (let number = 1; number <= 1500; number += 1)
      server.world.say("mill-3", "client", "info", `flood ${number}`);
    await page.getByText("flood 1500", { exact: true }).waitFor();
    const rows = await page.locator(".event").count();
    await visit(page, base, "#/cluster", "Cluster");
    return rows <= 200 ? "" : `${rows} events are drawn`;
  });
  await check("live/a broken stream is said and mended", async () => {
    server.state.silentUntil = Date.now() + 2500;
    server.closeAllConnections();
    await page.getByText("Disconnected from mill-1, retrying.").waitFor({ timeout: 5000 });
    const found = await axe(page);
    if (found !== "") return found;
    await page
      .getByText("Disconnected from mill-1, retrying.")
      .waitFor({ state: "detached", timeout: 15_000 });
    await page.locator(".is-live").waitFor();
  });
  await close();
}

async function publishing() {
  const { page, faults, close } = await openPage(browser);
  await check("publish/a message", async () => {
    await visit(page, base, "#/publish", "Publish");
    await page.getByLabel("Topic").fill(HOSTILE.topic);
    await page.getByLabel("Payload").fill(HOSTILE.payload);
    await page.getByLabel("QoS").selectOption("2");
    await page.getByLabel("Retain").check();
    await page.getByRole("button", { name: "Publish", exact: true }).click();
    await page.getByText("in shard 17 at offset").waitFor();
    const sent = JSON.stringify(server.world.published.at(-1));
    const meant = JSON.stringify({ topic: HOSTILE.topic, payload: HOSTILE.payload, qos: 2, retain: true });
    return sent === meant ? faults.join("; ") : `sent ${sent}`;
  });
  await check("publish/a refusal is said", async () => {
    await page.getByLabel("Topic").fill("a/#");
    await page.getByRole("button", { name: "Publish", exact: true }).click();
    await page.getByText("a topic has no wildcards").waitFor();
  });
  await close();
}

async function access() {
  const closed = await serve({ needsLogin: true, hasUsers: false });
  const there = `http://127.0.0.1:${closed.address().port}`;
  const { page, faults, close } = await openPage(browser);
  await check("login/form and refusal", async () => {
    await page.goto(there);
    await page.getByLabel("User").fill("admin");
    await page.getByLabel("Password").fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("the user name or password is wrong").waitFor();
    const others = faults.splice(0).filter((fault) => !fault.includes("401"));
    return [await axe(page), ...others].filter(Boolean).join("; ");
  });
  await check("login/in and out", async () => {
    await page.getByLabel("Password").fill("admin");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { level: 1, name: "Cluster" }).waitFor();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("button", { name: "Log in" }).waitFor();
  });
  await check("login/users are hidden where the node does not keep them", async () => {
    await page.getByLabel("User").fill("admin");
    await page.getByLabel("Password").fill("admin");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("link", { name: "Publish" }).waitFor();
    const shown = await page.getByRole("link", { name: "Users and rules" }).count();
    return shown === 0 ? "" : "the page is offered";
  });
  await close();
  closed.closeAllConnections();
  closed.close();
}

await everyPage("light");
await everyPage("dark");
await hostileText();
await keyboard();
await figures();
await publishing();
await access();
await browser.close();
server.closeAllConnections();
server.close();
process.exitCode = verdict.failures === 0 ? 0 : 1;
