/** Where the nodes of the cluster stand in the picture, and which links join them. Pure. */
import type { NodeRow } from "./contract";

export interface Box {
  node: NodeRow;
  /** The middle of the card. */
  x: number;
  y: number;
}

export interface Picture {
  width: number;
  height: number;
  cardWidth: number;
  cardHeight: number;
  boxes: Box[];
}

export type LinkState = "up" | "down" | "unknown";

export interface LinkLine {
  from: Box;
  to: Box;
  state: LinkState;
  rttMs: number | null;
}

/** A ring for three or more, a row for two: everything fits into `width`. */
export function arrange(nodes: readonly NodeRow[], width: number): Picture {
  const isNarrow = width < 520;
  const isCrowded = nodes.length > 6;
  const cardWidth = isNarrow ? Math.min(124, width / 2 - 12) : isCrowded ? 132 : 176;
  const cardHeight = isNarrow || isCrowded ? 52 : 74;
  const height = nodes.length <= 2 ? cardHeight + 48 : isCrowded ? 440 : nodes.length <= 4 ? 260 : 360;
  const radiusX = Math.min((width - cardWidth) / 2 - 4, 300);
  const radiusY = (height - cardHeight) / 2 - 4;
  const start = nodes.length === 2 ? Math.PI : -Math.PI / 2;
  const angles = nodes.map((_, index) => start + (index * 2 * Math.PI) / nodes.length);
  // A ring of three ends above the middle of its lower half: stretched, it fills the picture.
  const heights = angles.map(Math.sin);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const boxes = nodes.map((node, index) => {
    const share = nodes.length <= 2 ? 0 : ((heights[index] ?? 0) - low) / (high - low || 1) - 0.5;
    return {
      node,
      x: Math.round(width / 2 + (nodes.length === 1 ? 0 : radiusX * Math.cos(angles[index] ?? 0))),
      y: Math.round(height / 2 + share * 2 * radiusY),
    };
  });
  return { width, height, cardWidth, cardHeight, boxes };
}

/** A link is up if whoever knows says so, and down if one of the two says so or is gone. */
export function linksOf(boxes: readonly Box[]): LinkLine[] {
  const lines: LinkLine[] = [];
  boxes.forEach((from, index) => {
    for (const to of boxes.slice(index + 1)) {
      const said = [said_(from.node, to.node.node), said_(to.node, from.node.node)].filter(
        (one) => one !== undefined,
      );
      const isGone = [from, to].some(
        (box) => box.node.state === "unreachable" || box.node.state === "removed",
      );
      const state: LinkState =
        isGone || said.some((one) => !one.is_up) ? "down" : said.length > 0 ? "up" : "unknown";
      const times = said.map((one) => one.rtt_ms).filter((time) => time !== null);
      lines.push({ from, to, state, rttMs: times.length > 0 && state === "up" ? Math.max(...times) : null });
    }
  });
  return lines;
}

function said_(node: NodeRow, other: string) {
  return node.figures?.links.find((link) => link.to === other);
}
