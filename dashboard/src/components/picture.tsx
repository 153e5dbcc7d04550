/** The cluster as a picture: a card for each node, a line for each link. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Overview } from "../contract";
import { milliseconds, percent, plural } from "../format";
import { arrange, linksOf, type Box, type LinkLine } from "../layout";
import { href } from "../router";
import { stateTone } from "./ui";

export function Picture({ overview }: { overview: Overview }) {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(640);
  useEffect(() => {
    const box = place.current;
    if (box === null) return;
    const measure = () => setWidth(Math.max(280, box.clientWidth));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  const picture = arrange(overview.nodes, width);
  const showsTimes = overview.nodes.length <= 5 && width >= 520;
  return (
    <div class="picture" ref={place}>
      <svg
        width={picture.width}
        height={picture.height}
        viewBox={`0 0 ${picture.width} ${picture.height}`}
        role="group"
        aria-label="Nodes and the links between them"
      >
        {linksOf(picture.boxes).map((line) => (
          <Line key={`${line.from.node.node}/${line.to.node.node}`} line={line} showsTime={showsTimes} />
        ))}
        {picture.boxes.map((box) => (
          <Card
            key={box.node.node}
            box={box}
            width={picture.cardWidth}
            height={picture.cardHeight}
            answering={overview.node}
          />
        ))}
      </svg>
    </div>
  );
}

function Line({ line, showsTime }: { line: LinkLine; showsTime: boolean }) {
  const { from, to } = line;
  const x = (from.x + to.x) / 2;
  const y = (from.y + to.y) / 2;
  const word = line.state === "down" ? "down" : milliseconds(line.rttMs);
  return (
    <g class={`link link-${line.state}`}>
      <title>{`${from.node.node} and ${to.node.node}: ${line.state}${line.rttMs === null ? "" : `, ${milliseconds(line.rttMs)}`}`}</title>
      <line x1={from.x} y1={from.y} x2={to.x} y2={to.y} />
      {showsTime && (line.state === "down" || line.rttMs !== null) && (
        <>
          <rect x={x - 30} y={y - 10} width="60" height="20" rx="10" />
          <text x={x} y={y + 4}>
            {word}
          </text>
        </>
      )}
    </g>
  );
}

function shortened(text: string, charactersMax: number): string {
  return text.length > charactersMax ? `${text.slice(0, charactersMax - 1)}…` : text;
}

function Card(props: { box: Box; width: number; height: number; answering: string }) {
  const { box, width, height } = props;
  const { node } = box;
  const left = box.x - width / 2;
  const top = box.y - height / 2;
  const isLarge = height > 60;
  const tone = node.state === "up" && node.is_draining ? "warning" : stateTone(node.state);
  const role = node.leads_meta
    ? isLarge
      ? "leads the cluster"
      : "leads cluster"
    : node.leads > 0
      ? `leads ${plural(node.leads, "group")}`
      : "follows";
  const said = node.state === "up" ? (node.is_draining ? "draining" : role) : node.state;
  const figures = node.figures;
  return (
    <a
      href={href("cluster", [node.node])}
      class={`node node-${tone} ${node.leads_meta && node.state === "up" ? "node-leader" : ""}`}
    >
      <rect x={left} y={top} width={width} height={height} rx="8" />
      <circle cx={left + 16} cy={top + 19} r="5" />
      <text class="node-name" x={left + 28} y={top + 23.5}>
        {shortened(node.node, isLarge ? 15 : 10)}
      </text>
      {node.node === props.answering && (
        <text class="node-here" x={left + width - 12} y={top + 23}>
          here
        </text>
      )}
      <text class="node-role" x={left + 12} y={top + 42}>
        {shortened(said, isLarge ? 26 : 17)}
      </text>
      {isLarge && (
        <text class="node-load" x={left + 12} y={top + 60}>
          {figures === null || node.state !== "up"
            ? node.silent_s >= 1
              ? `silent for ${Math.round(node.silent_s)} s`
              : "no figures"
            : `CPU ${percent(figures.cpu_percent)} · ${plural(figures.clients, "client")}`}
        </text>
      )}
    </a>
  );
}
