/** Small parts that every page uses. All text goes through the library as text, never as markup. */
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import { sparklinePath } from "../history";
import { href } from "../router";

export type Tone = "good" | "warning" | "bad" | "info" | "neutral" | "accent";

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge badge-${tone}`}>{children}</span>;
}

/** A dot with a word: colour alone says nothing to some. */
export function State({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`state state-${tone}`}>
      <span class="dot" aria-hidden="true" />
      {children}
    </span>
  );
}

export function stateTone(state: string): Tone {
  switch (state) {
    case "up":
    case "running":
    case "good":
      return "good";
    case "suspect":
    case "starting":
    case "waiting":
    case "warning":
      return "warning";
    case "unreachable":
    case "failed":
    case "bad":
    case "error":
      return "bad";
    default:
      return "neutral";
  }
}

export function Panel(props: {
  title: string;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  const id = useId();
  return (
    <section class={`panel ${props.class ?? ""}`} aria-labelledby={id}>
      <div class="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.note !== undefined && <p class="note">{props.note}</p>}
        {props.actions !== undefined && <div class="actions">{props.actions}</div>}
      </div>
      {props.children}
    </section>
  );
}

export function PageHead(props: {
  title: ComponentChildren;
  note?: ComponentChildren;
  actions?: ComponentChildren;
}) {
  return (
    <div class="page-head">
      <div>
        <h1>{props.title}</h1>
        {props.note !== undefined && <p class="note">{props.note}</p>}
      </div>
      {props.actions !== undefined && <div class="actions">{props.actions}</div>}
    </div>
  );
}

export function Back({ page, children }: { page: string; children: ComponentChildren }) {
  return (
    <a class="back" href={href(page)}>
      <span aria-hidden="true">←</span> {children}
    </a>
  );
}

export function Sparkline({
  values,
  width = 72,
  height = 20,
}: {
  values: readonly number[];
  width?: number;
  height?: number;
}) {
  const line = sparklinePath(values, width, height);
  return (
    <svg
      class="sparkline"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      aria-hidden="true"
    >
      {line !== "" && (
        <>
          <path class="area" d={`${line}L${width} ${height}L0 ${height}Z`} />
          <path class="line" d={line} />
        </>
      )}
    </svg>
  );
}

export function Tile(props: {
  label: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  values?: readonly number[];
}) {
  return (
    <div class="tile">
      <dt>{props.label}</dt>
      <dd>
        <span class="tile-value">{props.value}</span>
        {props.note !== undefined && <span class="tile-note">{props.note}</span>}
      </dd>
      {props.values !== undefined && <Sparkline values={props.values} width={84} height={20} />}
    </div>
  );
}

/** A share of a whole as a thin bar; the number stands beside it. */
export function Meter({ share, label }: { share: number; label: string }) {
  const width = Math.max(0, Math.min(1, share)) * 48;
  const tone = share >= 0.95 ? "bad" : share >= 0.85 ? "warning" : "good";
  return (
    <svg class={`meter meter-${tone}`} width="48" height="6" role="img" aria-label={label}>
      <rect class="meter-back" width="48" height="6" rx="3" />
      <rect class="meter-fill" width={width} height="6" rx="3" />
    </svg>
  );
}

export interface Column<T> {
  name: string;
  /** Numbers stand at the right. */
  number?: boolean;
  /** Left out on a narrow screen. */
  minor?: boolean;
  /** Shown only where there is plenty of room. */
  extra?: boolean;
  /** Buttons: they stay in sight at the end of the row. */
  actions?: boolean;
  /** Takes what room there is, and breaks words if it must. */
  wide?: boolean;
  show: (row: T) => ComponentChildren;
}

/** A table that scrolls in itself where the screen is narrow, and says so where it is empty. */
export function Table<T>(props: {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string | number;
  empty: ComponentChildren;
  rowClass?: (row: T) => string;
}) {
  const { columns, rows } = props;
  if (rows.length === 0) return <p class="empty">{props.empty}</p>;
  const classes = (column: Column<T>) =>
    [
      column.number && "number",
      column.minor && "minor",
      column.extra && "extra",
      column.wide && "wide",
      column.actions && "row-actions",
    ]
      .filter(Boolean)
      .join(" ");
  return (
    <div class="table-box" role="region" aria-label={props.label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classes(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={props.keyOf(row)} class={props.rowClass?.(row) ?? ""}>
              {columns.map((column, index) =>
                index === 0 ? (
                  <th key={column.name} scope="row" class={classes(column)}>
                    {column.show(row)}
                  </th>
                ) : (
                  <td key={column.name} class={classes(column)}>
                    {column.show(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Facts({ rows }: { rows: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Filters, topics and other names: as they are, in a fixed-width font. */
export function Code({ children }: { children: ComponentChildren }) {
  return <code class="code">{children}</code>;
}

export function Filters({
  filters,
  empty = "all other topics",
}: {
  filters: readonly string[];
  empty?: string;
}) {
  if (filters.length === 0) return <span class="quiet">{empty}</span>;
  return (
    <span class="filters">
      {filters.slice(0, 4).map((filter) => (
        <Code key={filter}>{filter}</Code>
      ))}
      {filters.length > 4 && <span class="quiet">and {filters.length - 4} more</span>}
    </span>
  );
}

export function NodeLink({ node }: { node: string | null }) {
  return node === null ? <span class="quiet">none</span> : <a href={href("cluster", [node])}>{node}</a>;
}

export function NodeLinks({ nodes }: { nodes: readonly string[] }) {
  if (nodes.length === 0) return <span class="quiet">none</span>;
  return (
    <span class="comma-list">
      {nodes.map((node, index) => (
        <span key={node}>
          <NodeLink node={node} />
          {index < nodes.length - 1 ? ", " : ""}
        </span>
      ))}
    </span>
  );
}

export function Field(props: {
  label: string;
  hint?: string;
  children: (id: string) => JSX.Element;
  class?: string;
}) {
  const id = useId();
  return (
    <div class={`field ${props.class ?? ""}`}>
      <label for={id}>{props.label}</label>
      {props.children(id)}
      {props.hint !== undefined && <p class="hint">{props.hint}</p>}
    </div>
  );
}

export function Notice({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <div class={`notice notice-${tone}`} role={tone === "bad" ? "alert" : "status"}>
      {children}
    </div>
  );
}

/** Nodes that did not answer, so that a short list is not taken for a whole one. */
export function Missing({ nodes }: { nodes: readonly string[] }) {
  return nodes.length === 0 ? null : (
    <Notice tone="warning">
      {nodes.length === 1 ? "Node" : "Nodes"} {nodes.join(", ")} did not answer: this list may lack what only{" "}
      {nodes.length === 1 ? "it knows" : "they know"}.
    </Notice>
  );
}

export interface Tab {
  id: string;
  label: string;
  href: string;
}

export function Tabs({ label, tabs, current }: { label: string; tabs: readonly Tab[]; current: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.id} href={tab.href} {...(tab.id === current ? { "aria-current": "page" as const } : {})}>
          {tab.label}
        </a>
      ))}
    </nav>
  );
}
