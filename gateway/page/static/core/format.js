// Numbers, times and names as text. What is not known is a dash, which is not 0.

export const NOT_KNOWN = "–";

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const calendar = new Intl.DateTimeFormat("en-CA", { dateStyle: "short" });

function known(format) {
  return (value, ...rest) =>
    value === null || value === undefined || Number.isNaN(value)
      ? NOT_KNOWN
      : format(value, ...rest);
}

/** 1,234,567 */
export const count = known((value) => grouped.format(value));

/** Three figures: 0.42, 8.13, 61.5, 940, 12.3 k, 4.56 M */
export const short = known((value) => {
  const size = Math.abs(value);
  if (size >= 1e9) return `${figures(value / 1e9)} G`;
  if (size >= 1e6) return `${figures(value / 1e6)} M`;
  if (size >= 1e4) return `${figures(value / 1e3)} k`;
  return Number.isInteger(value) || size >= 1000 ? grouped.format(value) : figures(value);
});

/** A share of 1 as 61.5 % */
export const percent = known((value) => `${share(value * 100)} %`);

/** Milliseconds as 0.8 ms, 42 ms or 1.52 s */
export const millis = known((value) =>
  value >= 1000 ? `${figures(value / 1000)} s` : `${figures(value)} ms`,
);

/** Seconds as 4 s, 12 min, 3 h 20 min, 5 d */
export const duration = known((seconds) => {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
});

/** Seconds since the epoch as 14:03:22; before today with its date. */
export const time = known((seconds, now = Date.now()) => {
  const moment = new Date(seconds * 1000);
  const day = calendar.format(moment);
  const text = clock.format(moment);
  return day === calendar.format(new Date(now)) ? text : `${day} ${text}`;
});

/** Seconds since the epoch as 2026-05-04 */
export const date = known((seconds) => calendar.format(new Date(seconds * 1000)));

/** Who a tenant is: its name, or its id when it has been deleted. */
export const tenantName = (tenant, name) => name ?? tenant ?? NOT_KNOWN;

function figures(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2);
}

function share(value) {
  return value === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(value < 1 ? 2 : 1);
}
