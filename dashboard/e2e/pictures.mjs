/**
 * The pictures of docs/how-to/dashboard.md: every page of the dashboard, small, of a made-up cluster with harmless
 * names. `npm run pictures [-- FOLDER]`.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { HOSTILE } from "../mock/world.mjs";

// Before whoever uses them is loaded.
Object.assign(HOSTILE, {
  topic: "sensors/north/boiler",
  client: "boiler-0001",
  payload: "21.5 C",
  user: "guest",
  event: "a wrong password for guest from 10.0.0.66",
});
const { serve } = await import("../mock/server.mjs");
const { launch, openPage, PAGES, visit } = await import("./browser.mjs");

const [folder = fileURLToPath(new URL("../../docs/how-to/dashboard/", import.meta.url))] =
  process.argv.slice(2);
const WIDE = { width: 1200, height: 760 };
const NARROW = { width: 400, height: 760 };
const QUALITY = 70;
const HISTORY_MS = 20_000;
const DARK = new Set(["cluster", "stream-quorum"]);
const NARROW_PAGES = new Set(["cluster", "streams", "messages"]);

await mkdir(folder, { recursive: true });
const server = await serve();
const base = `http://127.0.0.1:${server.address().port}`;
const browser = await launch();

async function shoot(page, name) {
  await page.mouse.move(0, 0);
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: QUALITY });
  await writeFile(`${folder}/${name}.webp`, Buffer.from(data, "base64"));
  await session.detach();
}

/** What a person would have done on the page. */
async function use(page, name) {
  if (name === "tail") await page.waitForTimeout(3000);
  if (name === "messages") await page.locator(".row-button").nth(1).click();
  if (name !== "publish") return;
  await page.getByLabel("Topic").fill("sensors/north/meter");
  await page.getByLabel("Payload").fill('{"watts": 412}');
  await page.getByRole("button", { name: "Where would it go?" }).click();
  await page.getByRole("heading", { name: "2 receivers" }).waitFor();
}

for (const colorScheme of ["light", "dark"]) {
  const { page, close } = await openPage(browser, { colorScheme, viewport: WIDE });
  await visit(page, base, PAGES[0][1], PAGES[0][2]);
  await page.waitForTimeout(HISTORY_MS); // A chart of one second shows nothing.
  for (const [name, address, heading] of PAGES) {
    if (colorScheme === "dark" && !DARK.has(name)) continue;
    await page.evaluate((hash) => (location.hash = hash), address);
    await page.getByRole("heading", { level: 1, name: heading }).waitFor();
    await page.waitForTimeout(500);
    await use(page, name);
    await shoot(page, colorScheme === "dark" ? `${name}-dark` : name);
    if (colorScheme === "light" && NARROW_PAGES.has(name)) {
      await page.setViewportSize(NARROW);
      await page.waitForTimeout(200);
      await shoot(page, `${name}-narrow`);
      await page.setViewportSize(WIDE);
    }
  }
  if (colorScheme === "light") {
    await page.evaluate(() => (location.hash = "#/cluster"));
    server.world.kill("mill-2");
    await page.locator(".node-bad").waitFor();
    await shoot(page, "killed");
    server.world.revive("mill-2");
    await page.evaluate(() => (location.hash = "#/sessions"));
    await page.getByRole("button", { name: "Delete the session of reporter" }).click();
    await shoot(page, "question");
  }
  await close();
}
server.state.needsLogin = true;
const { page, close } = await openPage(browser, { colorScheme: "light", viewport: WIDE });
await page.goto(base);
await page.getByRole("button", { name: "Log in" }).waitFor();
await shoot(page, "login");
await close();
await browser.close();
server.closeAllConnections();
server.close();
