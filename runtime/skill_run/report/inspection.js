"use strict";
(() => {
  const tip = document.getElementById("tip");
  const CELL = "[role=gridcell]";
  const GAP = 8;

  const line = (name, text) => {
    const element = document.createElement(name);
    element.textContent = text;
    return element;
  };

  let shown = null;

  const place = () => {
    const page = document.documentElement;
    const box = shown.getBoundingClientRect();
    const middle = (Math.max(box.left, 0) + Math.min(box.right, page.clientWidth)) / 2;
    const left = Math.min(middle - tip.offsetWidth / 2, page.clientWidth - tip.offsetWidth - GAP);
    const below = box.bottom + GAP;
    const top = below + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - GAP : below;
    tip.style.left = `${Math.max(left, GAP)}px`;
    tip.style.top = `${Math.max(top, GAP)}px`;
  };

  const show = (cell) => {
    const [head, ...rest] = cell.getAttribute("aria-label").split(": ");
    const numbers = rest.join(": ").split(", ").filter((part) => part);
    tip.replaceChildren(line("strong", head), ...numbers.map((part) => line("span", part)));
    tip.hidden = false;
    shown = cell;
    place();
  };
  const hide = () => {
    tip.hidden = true;
    shown = null;
  };
  const cellOf = (event) => (event.target instanceof Element ? event.target.closest(CELL) : null);

  const showOrHide = (event) => {
    const cell = cellOf(event);
    if (cell) show(cell); else hide();
  };
  document.addEventListener("pointerover", showOrHide);
  document.addEventListener("focusin", showOrHide);
  document.addEventListener("focusout", hide);
  // Reaching a cell by key may scroll, so the numbers follow it.
  for (const name of ["scroll", "resize"]) addEventListener(name, () => { if (shown) place(); }, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  const middleOf = (cell) => {
    const box = cell.getBoundingClientRect();
    return box.left + box.width / 2;
  };
  const nearest = (cells, x) =>
    cells.reduce((best, cell) => (Math.abs(middleOf(cell) - x) < Math.abs(middleOf(best) - x) ? cell : best));

  // One tab stop a map, as a grid has: arrows move inside.
  for (const grid of document.querySelectorAll("[role=grid]")) {
    const rows = [...grid.querySelectorAll("[role=row]")]
      .map((row) => [...row.querySelectorAll(CELL)]).filter((row) => row.length);
    if (!rows.length) continue;
    let current = rows[0][0];
    const stop = (cell) => {
      current.setAttribute("tabindex", "-1");
      cell.setAttribute("tabindex", "0");
      current = cell;
    };
    stop(current);
    grid.addEventListener("focusin", (event) => { if (cellOf(event)) stop(cellOf(event)); });
    grid.addEventListener("keydown", (event) => {
      const cell = cellOf(event);
      const at = rows.findIndex((row) => row.includes(cell));
      if (at < 0) return;
      const row = rows[at];
      const place = row.indexOf(cell);
      const next = {
        ArrowRight: () => row[place + 1],
        ArrowLeft: () => row[place - 1],
        ArrowDown: () => rows[at + 1] && nearest(rows[at + 1], middleOf(cell)),
        ArrowUp: () => rows[at - 1] && nearest(rows[at - 1], middleOf(cell)),
        Home: () => (event.ctrlKey ? rows[0][0] : row[0]),
        End: () => (event.ctrlKey ? rows.at(-1).at(-1) : row.at(-1)),
      }[event.key];
      if (!next) return;
      event.preventDefault();
      const target = next();
      if (target) target.focus();
    });
  }
})();
