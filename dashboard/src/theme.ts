/** Light or dark: what the system says, until somebody chooses otherwise. */
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "millrace-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme {
  try {
    const found = localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : "system";
  } catch {
    return "system"; // A browser that keeps nothing follows the system.
  }
}

export const theme = signal<Theme>(stored());
export const isDark = signal(false);

function apply(): void {
  isDark.value = theme.value === "dark" || (theme.value === "system" && system.matches);
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

export function choose(next: Theme): void {
  theme.value = next;
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // It holds until the page is closed.
  }
  apply();
}

export function startTheme(): void {
  system.addEventListener("change", apply);
  apply();
}
