/**
 * Photographs every page of the dashboard, light and dark, and some at the width of a telephone:
 * `npm run screenshots [-- FOLDER [NAME...]]`.
 */
import { mkdir } from "node:fs/promises";
import { serve } from "../mock/server.mjs";
import { launch, openPage, PAGES, visit } from "./browser.mjs";

const [folder = "screenshots", ...only] = process.argv.slice(2);
const HISTORY_MS = Number(process.env.HISTORY_MS ?? 12_000);
const NARROW = new Set(["cluster", "streams", "messages", "events", "clients", "publish"]);
const is = (name) => only.length === 0 || only.includes(name);

await mkdir(folder, { recursive: true });
const server = await serve();
const base = `http://127.0.0.1:${server.address().port}`;
const browser = await launch();

async function shoot(page, name) {
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
}

for (const colorScheme of ["light", "dark"]) {
  const { page, close } = await openPage(browser, { colorScheme });
  await visit(page, base, PAGES[0][1], PAGES[0][2]);
  await page.waitForTimeout(HISTORY_MS); // A chart of one second shows nothing.
  for (const [name, address, heading] of PAGES.filter(([name]) => is(name))) {
    await page.evaluate((hash) => (location.hash = hash), address);
    await page.getByRole("heading", { level: 1, name: heading }).waitFor();
    await page.waitForTimeout(name === "tail" ? 2500 : 500);
    if (name === "messages") await page.locator(".row-button").nth(1).click();
    if (name === "publish") {
      await page.getByLabel("Topic").fill("sensors/north/meter");
      await page.getByLabel("Payload").fill('{"watts": 412}');
      await page.getByRole("button", { name: "Where would it go?" }).click();
      await page.getByRole("heading", { name: "2 receivers" }).waitFor();
    }
    await shoot(page, `${name}-${colorScheme}`);
    if (colorScheme === "light" && NARROW.has(name)) {
      await page.setViewportSize({ width: 400, height: 860 });
      await page.waitForTimeout(200);
      await shoot(page, `${name}-narrow`);
      await page.setViewportSize({ width: 1360, height: 900 });
    }
  }
  if (is("killed")) {
    await page.evaluate(() => (location.hash = "#/cluster"));
    server.world.kill("mill-2");
    await page.locator(".node-bad").waitFor();
    await shoot(page, `killed-${colorScheme}`);
    server.world.revive("mill-2");
  }
  if (is("question")) {
    await page.evaluate(() => (location.hash = "#/sessions"));
    await page.getByRole("button", { name: "Delete the session of reporter" }).click();
    await shoot(page, `question-${colorScheme}`);
    await page.getByRole("button", { name: "Cancel" }).click();
  }
  if (is("disconnected")) {
    server.state.silentUntil = Date.now() + 4000;
    server.closeAllConnections();
    await page.getByText("retrying").waitFor();
    await shoot(page, `disconnected-${colorScheme}`);
    await page.getByText("retrying").waitFor({ state: "detached", timeout: 15_000 });
  }
  await close();
}
if (is("login")) {
  server.state.needsLogin = true;
  for (const colorScheme of ["light", "dark"]) {
    const { page, close } = await openPage(browser, { colorScheme });
    await page.goto(base);
    await page.getByRole("button", { name: "Log in" }).waitFor();
    await shoot(page, `login-${colorScheme}`);
    await close();
  }
}
await browser.close();
server.closeAllConnections();
server.close();
