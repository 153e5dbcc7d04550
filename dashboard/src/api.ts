/** Calls of the node's HTTP API. Every failure is an `ApiError` whose message says what to do. */
import { signal } from "@preact/signals";
import type { Me } from "./contract";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly more: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** Who looks; null until the node has said so. */
export const me = signal<Me | null>(null);

/** Whether we may change streams, groups, sessions and nodes; an administrator may, too. */
export function mayOperate(): boolean {
  return me.value !== null && (me.value.is_admin || me.value.roles.includes("operator"));
}

/** Tells the node who asks: it then refuses without the challenge that opens the browser's own dialog. */
const PAGE = "millrace-dashboard";

type Query = Record<string, string | number | undefined>;

/** A path of the API; names go in as they are and are encoded here. */
export function path(parts: readonly (string | number)[], query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const tail = parameters.toString();
  return `/${parts.map((part) => encodeURIComponent(part)).join("/")}${tail === "" ? "" : `?${tail}`}`;
}

async function problemOf(answer: Response): Promise<ApiError> {
  try {
    const body: unknown = await answer.json();
    if (typeof body === "object" && body !== null && "detail" in body && typeof body.detail === "string") {
      return new ApiError(answer.status, body.detail, body as Record<string, unknown>);
    }
  } catch {
    // Not a problem document: the status has to do.
  }
  return new ApiError(answer.status, `the node answered ${answer.status} ${answer.statusText}`.trim());
}

export async function call<T>(
  method: string,
  where: string,
  body?: unknown,
  signal_?: AbortSignal,
): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(where, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: {
        Accept: "application/json",
        "X-Requested-With": PAGE,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal_ === undefined ? {} : { signal: signal_ }),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "the node does not answer");
  }
  if (answer.status === 401 && me.value !== null && where !== "/v1/login") {
    me.value = { user: null, is_admin: false, roles: [], login_needed: true };
  }
  if (!answer.ok) throw await problemOf(answer);
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

export function get<T>(where: string, signal_?: AbortSignal): Promise<T> {
  return call<T>("GET", where, undefined, signal_);
}

export function post<T>(where: string, body: unknown = {}): Promise<T> {
  return call<T>("POST", where, body);
}

export function remove(where: string): Promise<void> {
  return call<void>("DELETE", where);
}

/** Asks who we are. A node without `/v1/me` has no login: whoever it trusts may look. */
export async function identify(): Promise<void> {
  try {
    me.value = await get<Me>("/v1/me");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      me.value = { user: null, is_admin: false, roles: [], login_needed: true };
    } else if (error instanceof ApiError && error.status === 404) {
      me.value = { user: null, is_admin: true, roles: [], login_needed: false };
    } else {
      throw error;
    }
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
