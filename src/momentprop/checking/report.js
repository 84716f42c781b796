// Sorts a table by the column that is clicked, tells the numbers under the pointer, and hides methods on request.
"use strict";

function value(cell) {
  const text = cell.textContent.replaceAll(",", "");
  const found = text.match(/-?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? Number(found[0]) + (text.startsWith(">") ? 1e-9 : 0) : null;
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null); // what has no number comes last
  return sign * (one - other);
}

// The first column restores the order in which the rows came.
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const key = row => column ? value(row.cells[column]) : Number(row.dataset.place);
  for (const [i, row] of [...body.rows].entries()) row.dataset.place ??= i;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), sign)));
}

for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
}

// A title that the browser shows late, and never on a phone, becomes a note at the pointer.
for (const title of document.querySelectorAll(".chart title")) {
  const owner = title.parentNode;
  owner.setAttribute("aria-label", title.textContent);
  if (owner.querySelectorAll("title").length === 1) owner.dataset.tip = title.textContent;
  title.remove();
}

const note = document.body.appendChild(document.createElement("div"));
note.id = "tip";
note.hidden = true;

function nearest(chart, x, y) {
  let best = chart.dataset.tip ? chart : null, least = 24;
  for (const each of chart.querySelectorAll("[data-tip]")) {
    const box = each.getBoundingClientRect();
    if (!box.width) continue;
    const away = Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
    if (away < least) [best, least] = [each, away];
  }
  return best;
}

function tell(event) {
  const chart = event.target.closest?.(".chart");
  const found = chart && nearest(chart, event.clientX, event.clientY);
  note.hidden = !found;
  if (!found) return;
  note.textContent = found.dataset.tip.replaceAll("; ", "\n");
  const left = Math.min(event.clientX + 14, innerWidth - note.offsetWidth - 8);
  const below = event.clientY + 18 + note.offsetHeight < innerHeight;
  note.style.left = `${Math.max(8, left)}px`;
  note.style.top = `${below ? event.clientY + 18 : event.clientY - note.offsetHeight - 12}px`;
}

document.addEventListener("pointermove", tell);
document.addEventListener("pointerdown", tell);
document.addEventListener("scroll", () => { note.hidden = true; }, { passive: true });

// A method in a legend is a switch for its marks and lines in the charts of its section.
for (const entry of document.querySelectorAll(".legend [data-method]")) {
  entry.tabIndex = 0;
  entry.setAttribute("role", "switch");
  entry.setAttribute("aria-checked", "true");
  const flip = () => {
    const on = entry.getAttribute("aria-checked") === "false";
    entry.setAttribute("aria-checked", String(on));
    for (const mark of entry.closest("section").querySelectorAll(`.chart .${entry.dataset.method}`)) {
      mark.classList.toggle("off", !on);
    }
  };
  entry.addEventListener("click", flip);
  entry.addEventListener("keydown", event => { if (event.key === "Enter") flip(); });
}
