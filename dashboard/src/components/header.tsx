/** What stands above every page: which cluster, which node answers, how it is, and how fresh the figures are. */
import { useEffect, useState } from "preact/hooks";
import { identify, me, post } from "../api";
import { duration } from "../format";
import { healthOf } from "../health";
import { connection, overview, stop, trouble, updatedMs } from "../live";
import { href } from "../router";
import { choose, theme, type Theme } from "../theme";
import { State } from "./ui";

export function Mark() {
  return (
    <svg class="mark" width="26" height="26" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="12.5" r="8" />
      <path
        class="spokes"
        d="M16 4.500v16M8 12.500h16M10.300 6.900l11.400 11.200M21.700 6.900L10.300 18.100"
      />
      <path d="M2.500 27c2.300-2.300 4.500-2.300 6.800 0s4.500 2.300 6.700 0 4.500-2.300 6.800 0 4.400 2.300 6.700 0" />
    </svg>
  );
}

export function Header({ isMenuOpen, toggleMenu }: { isMenuOpen: boolean; toggleMenu: () => void }) {
  const now = overview.value;
  const health = now === null ? null : healthOf(now);
  return (
    <header class="header">
      <button
        type="button"
        class="menu-button"
        aria-expanded={isMenuOpen}
        aria-controls="navigation"
        onClick={toggleMenu}
      >
        Menu
      </button>
      <a class="brand" href={href("cluster")}>
        <Mark />
        <span>Millrace</span>
      </a>
      {now !== null && health !== null && (
        <dl class="vitals">
          <div>
            <dt>Cluster</dt>
            <dd title={now.cluster}>{now.cluster}</dd>
          </div>
          <div>
            <dt>Answered by</dt>
            <dd>{now.node}</dd>
          </div>
          <div class="vital-health">
            <dt>Health</dt>
            <dd title={health.reasons.join("\n")}>
              <State tone={connection.value === "broken" ? "neutral" : health.level}>
                {connection.value === "broken" ? "unknown" : health.word}
              </State>
              {health.level !== "good" && connection.value !== "broken" && (
                <span class="reason">{health.reasons[0]}</span>
              )}
            </dd>
          </div>
        </dl>
      )}
      <div class="header-end">
        <Freshness />
        <ThemeSwitch />
        <Account />
      </div>
    </header>
  );
}

function Freshness() {
  const [, setBeat] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setBeat((before) => before + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (updatedMs.value === 0) return null;
  const seconds = Math.max(0, Math.floor((Date.now() - updatedMs.value) / 1000));
  const isLive = connection.value === "live";
  const at = new Date(updatedMs.value);
  return (
    <p class={`freshness ${isLive ? "is-live" : ""}`} title={`Last update ${at.toLocaleTimeString("en-GB")}`}>
      <span class="pulse" aria-hidden="true" />
      {isLive && seconds < 3 ? `Live, ${at.toLocaleTimeString("en-GB")}` : `Updated ${duration(seconds)} ago`}
    </p>
  );
}

const THEMES: [Theme, string][] = [
  ["system", "Auto"],
  ["light", "Light"],
  ["dark", "Dark"],
];

function ThemeSwitch() {
  return (
    <label class="theme">
      <span class="only-heard">Colours</span>
      <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
        <circle cx="8" cy="8" r="6.25" />
        <path d="M8 1.750a6.250 6.250 0 0 1 0 12.500z" />
      </svg>
      <select value={theme.value} onChange={(event) => choose(event.currentTarget.value as Theme)}>
        {THEMES.map(([id, label]) => (
          <option key={id} value={id}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}

function Account() {
  const who = me.value;
  if (who?.user == null) return null;
  const leave = async () => {
    await post("/v1/logout");
    stop();
    overview.value = null;
    await identify();
  };
  return (
    <p class="account">
      <span title={who.roles.join(", ")}>{who.user}</span>
      <button type="button" class="small" onClick={() => void leave()}>
        Log out
      </button>
    </p>
  );
}

/** While the live stream is broken; the other nodes have a dashboard too, and may be better off. */
export function Banner() {
  const state = connection.value;
  const now = overview.value;
  if (state === "live" || (state === "connecting" && now === null)) return <div role="alert" />;
  const others = (now?.nodes ?? []).filter(
    (node) => node.node !== now?.node && node.addresses.http !== null && node.state !== "removed",
  );
  return (
    <div role="alert" class={`banner ${state === "polling" ? "banner-warning" : "banner-bad"}`}>
      {state === "polling" ? (
        <p>
          <strong>The live stream is broken.</strong> Figures come every two seconds until it is back.
        </p>
      ) : (
        <p>
          <strong>Disconnected{now === null ? "" : ` from ${now.node}`}, retrying.</strong>{" "}
          {trouble.value !== "" && `${sentence(trouble.value)} `}
          {now !== null && "What you see is old."}
        </p>
      )}
      {state === "broken" && others.length > 0 && (
        <p>
          Other nodes:{" "}
          {others.map((node) => (
            <a
              key={node.node}
              href={`${location.protocol}//${node.addresses.http}/${location.hash}`}
              rel="noreferrer"
            >
              {node.node}
            </a>
          ))}
        </p>
      )}
    </div>
  );
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}
