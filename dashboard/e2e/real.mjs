/**
 * Drives the dashboard of a real node, and prints one JSON line for each check. `tests/browser/test_cluster.py` starts
 * the cluster, tells by the first argument what there is to see, and kills the node that a line `{"kill"}` names.
 */
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { createInterface } from "node:readline";
import { launch, openPage, visit } from "./browser.mjs";
import { axe, check, ranAsScript, verdict } from "./checks.mjs";

const { base, others, pages, texts, pipeline, screenshots } = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin });
const browser = await launch();
const { page, faults, close } = await openPage(browser);
if (screenshots) await mkdir(screenshots, { recursive: true });

/** Let the test kill a node; returns how long it is dead, in milliseconds. */
async function kill(node) {
  const answered = once(lines, "line");
  console.log(JSON.stringify({ kill: node }));
  const [line] = await answered;
  return Date.now() - Number(line);
}

/** Who leads, as the page says, which is then served by another node. */
async function findLeader() {
  await visit(page, base, "#/cluster", "Cluster");
  const said = await page.getByText(/^\S+ leads$/).textContent();
  const leader = said.split(" ")[0];
  if (others[leader] !== undefined) {
    await visit(page, others[leader], "#/cluster", "Cluster");
    await page.getByText(/^\S+ leads$/).waitFor();
  }
  await page.locator(".is-live").waitFor();
  return leader;
}

for (const [name, address, heading] of pages) {
  await check(`loads/${name}`, async () => {
    await visit(page, base, address, heading);
    await page.locator(".is-live").waitFor();
    if (name === "tail") await page.locator(".row-button").first().waitFor();
    const shown = await page.locator("main .notice-bad").allTextContents();
    if (screenshots) await page.screenshot({ path: `${screenshots}/${name}.png`, fullPage: true });
    return [...shown, ...faults.splice(0)].join("; ");
  });
  await check(`axe/${name}`, () => axe(page));
}
for (const [what, address, text] of texts) {
  await check(`text/${what}`, async () => {
    await page.goto(`${base}/${address}`);
    await page.getByText(text).first().waitFor();
    return ranAsScript(page);
  });
}
await check("live/figures move", async () => {
  await visit(page, base, "#/cluster", "Cluster");
  const before = await page.locator(".tile").nth(2).textContent();
  const moved = (text) => document.querySelectorAll(".tile")[2]?.textContent !== text;
  await page.waitForFunction(moved, before, { timeout: 10_000 });
});
if (pipeline) {
  await check("live/the rows of a pipeline grow", async () => {
    await visit(page, base, "#/pipelines", "Pipelines");
    const row = page
      .getByRole("region", { name: `Queries of ${pipeline}` })
      .locator("tbody tr")
      .first();
    await row.waitFor({ timeout: 150_000 });
    const before = await row.textContent();
    const moved = (text) =>
      ![...document.querySelectorAll("tbody tr")].some((one) => one.textContent === text);
    await page.waitForFunction(moved, before, { timeout: 60_000 });
    if (screenshots) await page.screenshot({ path: `${screenshots}/pipelines.png`, fullPage: true });
    return axe(page);
  });
}
let leader = "";
await check("live/the leader's death is seen within two seconds", async () => {
  leader = await findLeader();
  faults.splice(0);
  const seen = page.getByRole("link", { name: new RegExp(`${leader}\\s*(suspect|unreachable)`) });
  const passed = await kill(leader);
  await seen.waitFor({ timeout: Math.max(1, 2000 - passed) });
  if (screenshots) await page.screenshot({ path: `${screenshots}/killed.png`, fullPage: true });
});
await check("live/another node leads", async () => {
  await page.getByText(`${leader} leads`, { exact: true }).waitFor({ state: "detached", timeout: 15_000 });
  await page.getByText(/^\S+ leads$/).waitFor({ timeout: 15_000 });
  return [await axe(page), ...faults.splice(0)].filter(Boolean).join("; ");
});
await check("live/the death is among the events", async () => {
  await page.getByRole("link", { name: "Events" }).click();
  const told = page.getByText(new RegExp(`${leader} is (suspect|unreachable)`));
  await told.first().waitFor({ timeout: 15_000 });
  return faults.splice(0).join("; ");
});
await check("hostile/nothing ran", () => ranAsScript(page));
await close();
await browser.close();
lines.close();
process.exitCode = verdict.failures === 0 ? 0 : 1;
