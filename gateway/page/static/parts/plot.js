// Plots over time, by uPlot: their colours are the page's, their legend says the values.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { date, time } from "../core/format.js";

const HEIGHT = 180;
const NARROW = 480;
const WHOLE = [1, 2, 5].flatMap((step) => [1, 10, 100, 1000, 10_000].map((unit) => step * unit)).sort((a, b) => a - b);

/**
 * `series`: [{name, colour, value(sample), dashed?}] over `samples` (each with `t`, in seconds);
 * `format` writes a value; `stacked` lays them on each other; `top` is where the scale ends;
 * `whole` values are counts.
 * `colour` names a custom property of the style sheet.
 */
export function Plot({ label, samples, series, format, stacked = false, top = null, whole = false, span }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [place, setPlace] = useState(null); // under the pointer
  const values = series.map(({ value }) => samples.map((one) => value(one) ?? null));
  const shown = useRef(null);
  shown.current = { samples, values, span, format };

  useEffect(() => {
    const canvas = box.current;
    const draw = () => {
      plot.current?.destroy();
      plot.current = drawn(canvas, { series, stacked, top, whole, shown, setPlace });
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const resized = new ResizeObserver(() => plot.current?.setSize(sizeOf(canvas)));
    draw();
    dark.addEventListener("change", draw);
    resized.observe(canvas);
    return () => {
      dark.removeEventListener("change", draw);
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, []);

  useEffect(() => plot.current?.setData(dataOf(shown.current, stacked)), [samples, span]);

  const at = place !== null && place < samples.length ? place : null;
  const now = values.map((one) => (at === null ? last(one) : one[at]));
  const said = series.map(({ name }, index) => `${name} ${format(now[index])}`).join(", ");
  const isEmpty = values.every((one) => one.every((value) => value === null));
  return html`<figure class="plot">
    <figcaption>
      <ul class="legend">
        ${series.map(({ name, colour, dashed }, index) => html`<li key=${name}>
          <${Swatch} colour=${colour} dashed=${dashed} />${name} <b>${format(now[index])}</b>
        </li>`)}
      </ul>
      <span class="when">${at === null ? "" : time(samples[at].t)}</span>
    </figcaption>
    <div class="canvas" ref=${box} role="img" aria-label=${`${label}. Latest: ${said}`}></div>
    ${isEmpty && html`<p class="empty over">Nothing measured in this time.</p>`}
  </figure>`;
}

export function Swatch({ colour, dashed }) {
  return html`<i class=${dashed ? "swatch dashed" : "swatch"} style=${{ color: `var(--${colour})` }}></i>`;
}

function drawn(box, { series, stacked, top, whole, shown, setPlace }) {
  const css = getComputedStyle(box);
  const colourOf = (name) => css.getPropertyValue(`--${name}`).trim();
  const [ink, line] = [colourOf("muted"), colourOf("line")];
  const drawnSeries = stacked ? [...series].reverse() : series;
  const axis = { stroke: ink, font: `11px ${css.fontFamily}`, ticks: { show: false } };
  return new globalThis.uPlot(
    {
      ...sizeOf(box),
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: { x: { range: () => rangeOf(shown.current) }, y: { range: (_, low, high) => [0, top ?? headroom(high)] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 24, values: (_, ticks) => ticks.map(shown.current.span > DAYS_S ? date : clockOf) },
        {
          ...axis,
          grid: { stroke: line, width: 1 },
          space: 30,
          size: 58,
          incrs: whole ? WHOLE : undefined,
          values: (_, ticks) => ticks.map((value) => bare(shown.current.format(value))),
        },
      ],
      series: [{}, ...drawnSeries.map((one) => seriesOf(one, colourOf, stacked))],
      bands: stacked ? series.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })) : [],
      hooks: { setCursor: [({ cursor }) => setPlace(cursor.idx ?? null)] },
    },
    dataOf(shown.current, stacked),
    box,
  );
}

function seriesOf({ colour, dashed }, colourOf, stacked) {
  const stroke = colourOf(colour);
  return {
    stroke,
    width: 1.5,
    dash: dashed ? [4, 3] : undefined,
    fill: stacked ? `${stroke}66` : undefined,
    points: { show: (plot) => plot.data[0].length < FEW, filter: alone, size: 5, fill: stroke },
    spanGaps: false,
  };
}

/** Where a value has no neighbour, so that no line shows it; null where all have points. */
function alone(plot, series, all) {
  if (all) return null;
  const values = plot.data[series];
  const has = (place) => (values[place] ?? null) !== null;
  return values.flatMap((_, place) => (has(place) && !has(place - 1) && !has(place + 1) ? [place] : []));
}

/**
 * What uPlot draws; stacked series are sums with those before them, the whole sum first: one that
 * adds nothing lies below the line of the one before it, and not on it.
 */
function dataOf({ samples, values }, stacked) {
  const times = samples.map(({ t }) => t);
  if (!stacked) return [times, ...values];
  const base = times.map(() => 0);
  const sums = values.map((one) =>
    one.map((value, place) => (value === null ? null : (base[place] += value))),
  );
  return [times, ...sums.reverse()];
}

function rangeOf({ samples, span }) {
  const end = samples.at(-1)?.t ?? Date.now() / 1000;
  return [end - span, end];
}

/** 50.0 % as 50 % */
const bare = (text) => text.replace(/\.0+(?!\d)/, "");

const headroom = (high) => (high > 0 ? high * 1.1 : 1);

const sizeOf = (box) => ({ width: Math.max(200, box.clientWidth), height: box.clientWidth < NARROW ? HEIGHT - 30 : HEIGHT });

const DAYS_S = 2 * 86_400; // from which on the days are told, not the times
const FEW = 40; // values, which are also shown as points

const clockOf = (seconds) => time(seconds).slice(-8).replace(/:00$/, "");

const last = (values) => values.findLast((value) => value !== null) ?? null;
