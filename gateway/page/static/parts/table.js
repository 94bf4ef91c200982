// Tables in a box that scrolls by itself, sorted by a column where columns can be compared.
import { html, useState } from "../core/html.js";
import { Empty } from "./states.js";

/**
 * `columns`: [{name, show(row), by?(row), number?, wide?}]; a column with `by` can be sorted.
 * `keyOf(row)` names a row; `empty` is what stands where there are none; `sorted` is the name of
 * the column by which rows are sorted first, the largest first.
 */
export function Table({ label, columns, rows, keyOf, empty, sorted = null, marked }) {
  const [order, setOrder] = useState({ name: sorted, down: true });
  if (rows.length === 0) return html`<${Empty}>${empty}<//>`;
  const column = columns.find(({ name, by }) => name === order.name && by);
  const shown = column ? [...rows].sort(comparing(column.by, order.down)) : rows;
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">
    <table>
      <thead>
        <tr>${columns.map((one) => html`<${Head} key=${one.name} column=${one} ...${{ order, setOrder }} />`)}</tr>
      </thead>
      <tbody>
        ${shown.map(
          (row) => html`<tr key=${keyOf(row)} class=${marked?.(row) ? "marked" : ""}>
            ${columns.map((one) => html`<td key=${one.name} class=${classOf(one)}>${one.show(row)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function Head({ column, order, setOrder }) {
  const { name, by } = column;
  if (!by) return html`<th scope="col" class=${classOf(column)}>${name}</th>`;
  const is = order.name === name;
  const sort = is ? (order.down ? "descending" : "ascending") : "none";
  const turn = () => setOrder({ name, down: is ? !order.down : true });
  return html`<th scope="col" class=${classOf(column)} aria-sort=${sort}>
    <button type="button" class="sort" onClick=${turn}>
      ${name}<span aria-hidden="true">${is ? (order.down ? "↓" : "↑") : ""}</span>
    </button>
  </th>`;
}

const classOf = ({ number, wide }) => (number ? "number" : wide ? "long" : "");

function comparing(by, down) {
  return (left, right) => {
    const [a, b] = [by(left), by(right)];
    const order = typeof a === "string" || typeof b === "string"
      ? String(b ?? "").localeCompare(String(a ?? ""))
      : (b ?? -Infinity) - (a ?? -Infinity);
    return down ? order : -order;
  };
}
