/** Light and dark: what the reader chose, else what the system prefers. */

import { byId } from "./dom.mjs";

const root = document.documentElement;
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const repaints = [];

export const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

/** ``repaint`` is called whenever the colours change. */
export const onRepaint = (repaint) => repaints.push(repaint);

export const offerThemes = () => {
  const toggle = byId("theme");
  const changed = () => {
    toggle.setAttribute("aria-pressed", String(isDark()));
    repaints.forEach((repaint) => repaint());
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    changed();
  });
  prefersDark.addEventListener("change", changed);
};
