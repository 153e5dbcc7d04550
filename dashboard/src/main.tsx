/** Begins: theme, address, who looks, and the live stream. */
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import { App } from "./app";
import { follow } from "./router";
import { startTheme } from "./theme";

startTheme();
follow();
const place = document.getElementById("app");
if (place !== null) render(<App />, place);
