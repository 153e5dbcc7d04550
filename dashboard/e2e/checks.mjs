/** What all checks in a browser share: one JSON line for each, and what every page must be. */
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const SERIOUS = new Set(["serious", "critical"]);

export const verdict = { failures: 0 };

function report(name, ok, detail = "") {
  if (!ok) verdict.failures += 1;
  console.log(JSON.stringify({ name, ok, detail }));
}

/** A check that throws has failed, and the others still run. What it returns is its fault. */
export async function check(name, act) {
  try {
    const detail = await act();
    report(name, !detail, detail || "");
  } catch (error) {
    report(name, false, String(error.message ?? error));
  }
}

/** What axe finds that is serious, as text. */
export async function axe(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document));
  return found.violations
    .filter((violation) => SERIOUS.has(violation.impact))
    .map(
      (violation) =>
        `${violation.id}: ${violation.nodes
          .map((node) => node.target.join(" "))
          .slice(0, 3)
          .join(", ")}`,
    )
    .join("; ");
}

/** Whether a name or payload ran as a script: those of the checks set a variable. */
export async function ranAsScript(page) {
  const hacked = await page.evaluate(() => window.hacked);
  return hacked === undefined ? "" : `a script of a name or payload ran: ${hacked}`;
}
