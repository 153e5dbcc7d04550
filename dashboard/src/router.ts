/** Pages by the fragment of the address, so that the node needs no route of its own for them. */
import { signal } from "@preact/signals";

export interface Route {
  page: string;
  /** What follows the page, decoded: a name with slashes in it is one element. */
  path: string[];
  query: Record<string, string>;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** `#/streams/a%2Fb?tab=shards` is page `streams`, path `["a/b"]` and one parameter. */
export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [page = "", ...rest] = path.split("/");
  return {
    page: decoded(page) || "cluster",
    path: rest.filter((part) => part !== "").map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** The address of a page: every part is encoded, and parameters without a value are left out. */
export function href(
  page: string,
  path: readonly (string | number)[] = [],
  query: Readonly<Record<string, string | number | undefined>> = {},
): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const where = [page, ...path].map((part) => encodeURIComponent(part)).join("/");
  const tail = parameters.toString();
  return `#/${where}${tail === "" ? "" : `?${tail}`}`;
}

export const route = signal<Route>(parse(""));

export function follow(): void {
  const update = () => {
    route.value = parse(location.hash);
  };
  addEventListener("hashchange", update);
  update();
}

export function go(target: string): void {
  location.hash = target;
}

/** Changes the address without a new entry in the browser's history: for filters of a page. */
export function replace(target: string): void {
  history.replaceState(null, "", target);
  route.value = parse(target);
}
