/** A line chart of the last minutes, drawn by uPlot, with its newest values as text for everybody. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { overview, figures } from "../live";
import { isDark } from "../theme";

export interface Line {
  label: string;
  /** Name in the history of figures. */
  series: string;
}

const HEIGHT = 168;

/** A colour of the style sheet as a canvas takes it: with light and dark decided. */
function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function dataOf(lines: readonly Line[]): uPlot.AlignedData {
  const times = figures.get(lines[0]?.series ?? "").times;
  const values = lines.map((line) => {
    const series = figures.get(line.series);
    const missing = times.length - series.values.length;
    return missing > 0
      ? [...new Array<null>(missing).fill(null), ...series.values]
      : series.values.slice(-times.length);
  });
  return [times, ...values];
}

function options(lines: readonly Line[], width: number, format: (value: number) => string): uPlot.Options {
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const font = "11px system-ui, sans-serif";
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    padding: [10, 30, 0, 0],
    scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, font, size: 26, gap: 6, space: 90, values: (_, ticks) => ticks.map(timeOfDay) },
      { ...axis, font, size: 62, space: 36, values: (_, ticks) => ticks.map(format) },
    ],
    series: [
      {},
      ...lines.map((line, index) => ({
        label: line.label,
        stroke: colour(`--chart-${index + 1}`),
        ...(index === 0 ? { fill: colour("--chart-fill") } : {}),
        width: 1.6,
        points: { show: false },
      })),
    ],
  };
}

function timeOfDay(seconds: number): string {
  const at = new Date(seconds * 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function Chart(props: { label: string; lines: readonly Line[]; format: (value: number) => string }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const { lines, format } = props;
  const names = lines.map((line) => line.series).join(" ");
  const dark = isDark.value;

  useEffect(() => {
    const box = place.current;
    if (box === null) return;
    const make = () => new uPlot(options(lines, box.clientWidth, format), dataOf(lines), box);
    plot.current = make();
    const observer = new ResizeObserver(() =>
      plot.current?.setSize({ width: box.clientWidth, height: HEIGHT }),
    );
    observer.observe(box);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, dark]);

  const tick = overview.value?.time_us;
  useEffect(() => plot.current?.setData(dataOf(lines)), [tick]);

  return (
    <figure class="chart">
      <figcaption class="legend">
        {lines.map((line, index) => (
          <span key={line.series} class={`legend-${index + 1}`}>
            <span class="swatch" aria-hidden="true" />
            {line.label} <strong>{format(figures.get(line.series).values.at(-1) ?? 0)}</strong>
          </span>
        ))}
      </figcaption>
      <div class="plot" ref={place} role="img" aria-label={props.label} />
    </figure>
  );
}
