/** A list of the API that is searched, and read page by page. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { path } from "../api";
import type { Page } from "../contract";
import { overview } from "../live";
import { href, replace, route } from "../router";
import { useResource, type Resource } from "./resource";
import { Field, Missing, Notice, Table, type Column } from "./ui";

const PAGE = 50;

/** The page of a list that the address names: `search`, `node` and `cursor`. */
export function useList<T>(name: string, everyMs: number): Resource<Page<T>> {
  const { query } = route.value;
  const where = path(["v1", name], {
    limit: PAGE,
    search: query.search,
    node: query.node,
    cursor: query.cursor,
  });
  return useResource<Page<T>>(where, everyMs);
}

export function SearchBar(props: {
  page: string;
  path?: string[];
  label: string;
  hasNode?: boolean;
  children?: ComponentChildren;
}) {
  const { query } = route.value;
  const [text, setText] = useState(query.search ?? "");
  const set = (changes: Record<string, string>) =>
    replace(href(props.page, props.path ?? [], { ...query, cursor: undefined, ...changes }));
  useEffect(() => {
    if (text === (query.search ?? "")) return;
    const timer = setTimeout(() => set({ search: text }), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <form class="toolbar" role="search" onSubmit={(event) => event.preventDefault()}>
      <Field label={props.label} class="grow">
        {(id) => (
          <input
            id={id}
            type="search"
            spellcheck={false}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        )}
      </Field>
      {props.hasNode && (
        <Field label="Node">
          {(id) => (
            <select
              id={id}
              value={query.node ?? ""}
              onChange={(event) => set({ node: event.currentTarget.value })}
            >
              <option value="">all</option>
              {overview.value?.nodes.map((node) => (
                <option key={node.node}>{node.node}</option>
              ))}
            </select>
          )}
        </Field>
      )}
      {props.children}
    </form>
  );
}

export function PagedTable<T>(props: {
  page: string;
  path?: string[];
  label: string;
  list: Resource<Page<T>>;
  columns: readonly Column<T>[];
  keyOf: (row: T) => string;
  empty: string;
}) {
  const { query } = route.value;
  const { list } = props;
  const turn = (cursor: string | undefined) => href(props.page, props.path ?? [], { ...query, cursor });
  if (list.value === null) {
    return list.error !== "" ? <Notice tone="bad">{list.error}</Notice> : <p class="empty">Loading.</p>;
  }
  return (
    <div class="panel">
      {list.error !== "" && <Notice tone="warning">These are older: {list.error}</Notice>}
      <Missing nodes={list.value.missing} />
      <Table
        label={props.label}
        columns={props.columns}
        rows={list.value.items}
        keyOf={props.keyOf}
        empty={props.empty}
      />
      {(query.cursor !== undefined || list.value.next !== null) && (
        <nav class="pager" aria-label={`Pages of ${props.label.toLowerCase()}`}>
          {query.cursor !== undefined && <a href={turn(undefined)}>First page</a>}
          {list.value.next !== null && <a href={turn(list.value.next)}>Next page</a>}
        </nav>
      )}
    </div>
  );
}
