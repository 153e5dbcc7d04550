/** How the dashboard is built: into the folder of the node's HTTP door, so that the wheel takes it along. */
import { defineConfig } from "vite";

const node = "http://127.0.0.1:18831";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/millrace/node/doors/http/assets/dashboard",
    emptyOutDir: true,
    assetsDir: "assets",
    // The content security policy of the node allows files of its own and nothing written into the page.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // What the packages in the result ask for: their notices travel with it.
    license: { fileName: "licenses.md" },
    target: "es2022",
    // light-dark() as it is written: these browsers know it.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
  },
  server: { proxy: { "/v1": node, "/status": node } },
});
