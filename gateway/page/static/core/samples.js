// The samples of `/admin/overview` over time: joining, choosing a span, and sums of them.

const KEPT_S = 3600;

/** `came` with the samples of `before` that it did not repeat. */
export function joined(before, came) {
  if (before === null) return came;
  const first = came.samples[0]?.t ?? Infinity;
  const old = before.samples.filter((one) => one.t < first && one.t > came.now - KEPT_S);
  return { ...came, samples: [...old, ...came.samples] };
}

export function within(overview, spanS) {
  return overview.samples.filter((one) => one.t > overview.now - spanS);
}

export function sum(samples, value) {
  return samples.reduce((total, one) => total + value(one), 0);
}

export const hitTokens = (sample) =>
  sample.hit_tokens.device + sample.hit_tokens.host + sample.hit_tokens.disk;

export const promptTokens = (sample) => hitTokens(sample) + sample.computed_tokens;

/** Cached tokens of prompt tokens; null where there was no prompt. */
export function hitRate(samples) {
  const asked = sum(samples, promptTokens);
  return asked === 0 ? null : sum(samples, hitTokens) / asked;
}

/** The sources of drafts in `samples`, by name. */
export function draftSources(samples) {
  return [...new Set(samples.flatMap(({ drafts }) => Object.keys(drafts)))].sort();
}

/** Tokens that answers took from a draft of `sources`, on average; null where there was none. */
export function acceptedPerDraft(samples, sources) {
  const of = (field) =>
    sum(samples, ({ drafts }) => sum(sources, (source) => drafts[source]?.[field] ?? 0));
  const drafts = of("drafts");
  return drafts === 0 ? null : of("accepted_tokens") / drafts;
}

/** What `value` names came to, a second. */
export function perSecond(samples, value) {
  return samples.length === 0 ? null : sum(samples, value) / sum(samples, ({ seconds }) => seconds);
}

/** The last sample for which `value` is known, as that value. */
export function lastKnown(samples, value) {
  for (let place = samples.length - 1; place >= 0; place -= 1) {
    const found = value(samples[place]);
    if (found !== null && found !== undefined) return found;
  }
  return null;
}
