// The page's style and its one script, embedded as they are.
#include "report/page_parts.h"

namespace kvartet {

const std::string_view kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --ground: #ffffff; --raised: #f5f6f8; --ink: #1b1f24; --faint: #57606a; --line: #d0d5dc; --link: #0a58b0;
  --same: #17663a; --worse: #a3201c; --better: #0a58b0; --open: #6b5300; --mark: #fff0a8;
  --s0: #30363d; --s1: #0b61a4; --s2: #b3470a; --s3: #0a7a53; --s4: #8a2f8f; --s5: #a61e2e; --s6: #006d77; --s7: #7a5c00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --raised: #1e2329; --ink: #e7eaee; --faint: #a3adb8; --line: #3a424b; --link: #7db8ff;
    --same: #6fd09a; --worse: #ff9a92; --better: #7db8ff; --open: #e6c662; --mark: #5c4d00;
    --s0: #dde2e8; --s1: #6cb6ff; --s2: #ffab70; --s3: #56d39b; --s4: #e2a1e6; --s5: #ff8f9b; --s6: #5fd0da; --s7: #e3c565;
  }
}
* { box-sizing: border-box; }
body { --under: var(--ground); margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
h3 { font-size: 1.1rem; margin: 1.2rem 0 .3rem; }
h4, h5 { margin: .6rem 0 .2rem; font-size: 1rem; }
p { margin: .4rem 0; max-width: 48rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 1rem; top: 1rem; background: var(--ground); padding: .5rem; z-index: 9; }
.small { color: var(--faint); font-size: .875rem; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
nav a { display: inline-block; padding: .25rem 0; }
.answer { --under: var(--raised); background: var(--raised); border: 1px solid var(--line); border-radius: 8px; padding: .5rem 1rem 1rem; margin: 1rem 0; }
.claim { font-size: 1.1rem; font-weight: 600; }
.failure { color: var(--worse); }
.caution { border-left: 3px solid var(--worse); padding-left: .6rem; }
.scroll {
  overflow-x: auto; margin: .8rem 0; scrollbar-width: thin; scrollbar-color: var(--faint) transparent;
  background: linear-gradient(to left, var(--under) 40%, transparent) right / 2.4rem 100% no-repeat local, linear-gradient(to left, color-mix(in srgb, var(--faint) 50%, transparent), transparent) right / .5rem 100% no-repeat scroll;
}
.wide caption::after { content: " ↔ scroll sideways for more columns"; font-weight: 400; color: var(--faint); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; position: sticky; left: 0; max-width: calc(100vw - 4rem); }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; vertical-align: middle; }
thead th { white-space: normal; vertical-align: bottom; color: var(--faint); font-weight: 600; min-width: 4rem; }
th:first-child { text-align: left; position: sticky; left: 0; z-index: 1; background: var(--under); }
.wide th:first-child { box-shadow: 1px 0 var(--line); }
tbody th { font-weight: 600; }
tbody tr:hover > * { background: color-mix(in srgb, var(--link) 10%, var(--ground)); }
td code, dd code { white-space: normal; overflow-wrap: anywhere; display: block; text-align: left; }
.words-below { text-align: left; }
th.words, td.words { text-align: left; white-space: normal; min-width: 14rem; max-width: 34rem; }
.verdict { text-align: left; font-weight: 600; }
.same { color: var(--same); } .worse { color: var(--worse); } .better { color: var(--better); } .open { color: var(--open); } .not-run { color: var(--faint); }
.picture { padding: 0 .6rem; }
.spread { width: 120px; height: 16px; display: block; }
.key { width: 1em; height: 1em; margin-right: .35em; vertical-align: -.12em; flex: none; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1rem; margin: .8rem 0; }
.chart { margin: 0; max-width: 34rem; }
.chart svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .875rem; color: var(--faint); }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .tick { fill: var(--faint); font-size: 11px; }
svg .label { fill: var(--c); font-weight: 600; paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
.answer svg .label { stroke: var(--raised); }
.grid { stroke: var(--line); stroke-width: 1; opacity: .6; }
.zero, .axis { stroke: var(--faint); stroke-width: 1.2; }
.band { fill: var(--same); opacity: .12; }
.mark, .box { fill: var(--c); }
.dot { fill: var(--faint); opacity: .55; }
.ring { fill: none; stroke: var(--c); stroke-width: 2; }
.interval { stroke: var(--c); stroke-width: 1.6; opacity: .75; }
.middle { stroke: var(--ground); stroke-width: 2; }
.line { fill: none; stroke: var(--c); stroke-width: 2; }
.frontier { fill: none; stroke: var(--faint); stroke-width: 1.5; stroke-dasharray: 5 4; }
.heat { fill: var(--c); } .cold { fill: none; stroke: var(--line); stroke-width: .5; }
.leader { stroke: var(--faint); stroke-width: .8; }
details { margin: .8rem 0; }
summary { cursor: pointer; padding: .4rem 0; color: var(--link); font-weight: 600; }
.side-by-side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: .6rem; }
.reply { border: 1px solid var(--line); border-radius: 6px; padding: .2rem .7rem .5rem; background: var(--raised); min-width: 0; }
.gold { border: 2px solid var(--same); }
.sample { margin: 1rem 0 1.5rem; }
.words { white-space: pre-wrap; font-size: .9rem; max-width: none; }
.question { border-left: 3px solid var(--line); padding-left: .7rem; }
mark { background: var(--mark); color: inherit; border-radius: 2px; padding: 0 .1em; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0 0 .3rem; max-width: 48rem; }
#filters { border: 1px solid var(--line); border-radius: 8px; padding: .3rem 1rem; margin: 1.5rem 0; background: var(--raised); }
fieldset { border: 0; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
legend { font-weight: 600; padding: 0; }
label { display: inline-flex; align-items: center; gap: .3rem; min-height: 2.2rem; }
input[type=checkbox] { width: 1.15rem; height: 1.15rem; }
button { font: inherit; padding: .3rem .9rem; border-radius: 6px; border: 1px solid var(--line); background: var(--ground); color: var(--ink); cursor: pointer; }
.off { display: none; }
@media (max-width: 30rem) {
  body { padding: .6rem; } .answer { padding: .4rem .6rem .8rem; } th, td { padding: .3rem .45rem; } ul { padding-left: 1.2rem; }
  nav ul { padding-left: 0; }
  table { font-size: .8125rem; } th, td { padding: .25rem .3rem; } td { white-space: normal; min-width: 3rem; }
  thead th { min-width: 3rem; } td.range { min-width: 4.8rem; } td.picture { min-width: 130px; }
  th:first-child { white-space: normal; overflow-wrap: break-word; min-width: 5.5rem; max-width: 8rem; font-size: .75rem; }
  th.words, td.words { min-width: 11rem; } th.words:first-child { min-width: 8rem; max-width: 8rem; }
}
@media print { #filters, nav, .skip { display: none; } .scroll { overflow: visible; } }
)css";

// Tables that do not fit say so. Filters: what is unchecked is hidden, the frontiers are drawn again for what is left, and the
// address keeps the choice.
const std::string_view kPageScript = R"js(
'use strict';
(() => {
  // A table that does not fit says so: on a phone nothing else shows that there is more.
  const fit = (region) => region.classList.toggle('wide', region.scrollWidth > region.clientWidth + 1);
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => fit(entry.target)));
  for (const region of document.querySelectorAll('.scroll')) { fit(region); resized.observe(region); }
  const form = document.getElementById('filters');
  const shown = document.getElementById('shown');
  const boxes = [...form.querySelectorAll('input[type=checkbox]')];
  if (boxes.length === 0) return;
  const kinds = ['task', 'context', 'spec'];
  const hiddenValues = () => {
    const hidden = { task: new Set(), context: new Set(), spec: new Set() };
    for (const box of boxes) if (!box.checked) hidden[box.name].add(box.value);
    return hidden;
  };
  const drawFrontier = (svg) => {
    const line = svg.querySelector('.frontier');
    if (!line) return;
    const points = [...svg.querySelectorAll('.point:not(.off)')].map((g) => [Number(g.dataset.px), Number(g.dataset.py)]);
    points.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    let best = Infinity;
    const kept = points.filter((p) => p[1] < best && ((best = p[1]), true));
    line.setAttribute('points', kept.map((p) => p.join(',')).join(' '));
  };
  const apply = () => {
    const hidden = hiddenValues();
    for (const kind of kinds) {
      for (const element of document.querySelectorAll(`[data-${kind}]`)) element.dataset[`off${kind}`] = hidden[kind].has(element.dataset[kind]) ? '1' : '';
    }
    for (const element of document.querySelectorAll('[data-task], [data-context], [data-spec]')) {
      element.classList.toggle('off', kinds.some((kind) => element.dataset[`off${kind}`] === '1'));
    }
    for (const svg of document.querySelectorAll('.chart svg')) drawFrontier(svg);
    const count = boxes.filter((box) => !box.checked).length;
    shown.textContent = count === 0 ? 'Everything is shown.' : `${count} of ${boxes.length} choices are hidden.`;
    const address = new URLSearchParams();
    for (const kind of kinds) for (const value of hidden[kind]) address.append(`hide-${kind}`, value);
    if (count > 0 || location.hash.startsWith('#hide-')) {
      try { history.replaceState(null, '', count > 0 ? '#' + address : location.pathname); } catch (ignored) { /* a file may not */ }
    }
  };
  if (location.hash.startsWith('#hide-')) {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const box of boxes) box.checked = !wanted.getAll(`hide-${box.name}`).includes(box.value);
    form.querySelector('details').open = true;
  }
  form.addEventListener('change', apply);
  form.addEventListener('reset', () => setTimeout(apply, 0));
  form.addEventListener('submit', (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
)js";

}  // namespace kvartet
