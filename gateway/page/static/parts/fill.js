// How full a tier is, and whose the blocks are: one bar for all, one for each owner.
import { html } from "../core/html.js";
import { count, percent, tenantName } from "../core/format.js";
import { Table } from "./table.js";

const COLOURS = 8; // of --owner-0 and so on; with more owners they come again

const PUBLISHED = "published"; // owns what is pinned, which has no quota

/** A colour for each owner, the same in all tiers. */
export function coloursOf(tiers) {
  const owners = new Set(tiers.flatMap((tier) => tier.owners.map(({ tenant }) => tenant)));
  return new Map([...owners].sort().map((tenant, index) => [tenant, `owner-${index % COLOURS}`]));
}

/** `tier`: {tier, total_blocks, used_blocks, owners: [{tenant, name, blocks, floor, ceiling}]} */
export function TierFill({ tier, colours }) {
  const { total_blocks: total, used_blocks: used } = tier;
  const owners = tier.owners.map((owner) => ({
    ...owner,
    ...(owner.tenant === PUBLISHED && { floor: null, ceiling: null }),
    colour: colours.get(owner.tenant),
  }));
  const held = owners.filter(({ blocks }) => blocks > 0);
  const shareOf = (blocks) => (total ? blocks / total : 0);
  const columns = [
    {
      name: "Owner",
      by: ({ tenant, name }) => tenantName(tenant, name),
      show: ({ tenant, name, colour }) => html`<span class="owner" title=${tenantName(tenant, name)}>
        <i class="dot" style=${{ background: `var(--${colour})` }}></i>${tenantName(tenant, name)}
      </span>`,
    },
    { name: "Blocks", number: true, by: ({ blocks }) => blocks, show: ({ blocks }) => count(blocks) },
    { name: "Floor", number: true, show: ({ floor }) => count(floor) },
    { name: "Ceiling", number: true, show: ({ ceiling }) => count(ceiling) },
    {
      name: "Of the tier",
      wide: true,
      by: ({ blocks }) => blocks,
      show: (owner) => html`<${Share} ...${owner} total=${total} />`,
    },
  ];
  const text = `${count(used)} of ${count(total)} blocks, ${percent(shareOf(used))}`;
  return html`<section class="tier" aria-label=${`Tier ${tier.tier}`}>
    <h3>${tier.tier} <small>${text}</small></h3>
    <div class="bar" role="img" aria-label=${text}>
      ${held.map(({ tenant, blocks, colour }) => html`<i
        key=${tenant}
        style=${{ width: `${shareOf(blocks) * 100}%`, background: `var(--${colour})` }}
      ></i>`)}
    </div>
    <${Table}
      label=${`Owners of blocks in tier ${tier.tier}`}
      columns=${columns}
      rows=${owners}
      keyOf=${({ tenant }) => tenant}
      sorted="Blocks"
      empty="Nobody has blocks in this tier."
    />
    ${tier.num_owners > owners.length && html`<p class="note">
      The ${count(owners.length)} largest of ${count(tier.num_owners)} owners.
    </p>`}
  </section>`;
}

/** An owner's part of the tier, with marks where its floor and its ceiling are. */
function Share({ blocks, floor, ceiling, colour, total }) {
  const at = (value) => `${Math.min(100, total ? (value / total) * 100 : 0)}%`;
  const mark = (value, kind) => value !== null && value !== undefined &&
    html`<b class=${kind} style=${{ left: at(value) }}></b>`;
  return html`<span class="share">
    <span class="track" aria-hidden="true">
      <i style=${{ width: at(blocks), background: `var(--${colour})` }}></i>
      ${mark(floor, "floor")}${mark(ceiling, "ceiling")}
    </span>
    <span>${percent(total ? blocks / total : null)}</span>
  </span>`;
}
