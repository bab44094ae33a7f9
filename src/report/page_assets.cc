#include "report/page_assets.h"

namespace tessera::report {

const char* const kPageStyle = R"css(
:root { color-scheme: light dark; --Back: #f6f7f9; --Card: #fff; --Text: #1c2430; --Soft: #5d6876; --Line: #dfe3e8;
  --0: #2563eb; --1: #d9480f; --2: #0f8a5f; --3: #9333ea; --4: #b7791f; --5: #0891b2; --6: #db2777; --7: #4d7c0f;
  --8: #6b7280; --9: #7c2d12; }
@media (prefers-color-scheme: dark) {
  :root { --Back: #12161c; --Card: #1b212a; --Text: #e4e8ee; --Soft: #97a3b3; --Line: #303945;
    --0: #6ea8fe; --1: #ff9466; --2: #4fd1a1; --3: #c792ff; --4: #f0c36a; --5: #5fd0e6; --6: #ff85bd; --7: #a8d45c;
    --8: #a3adba; --9: #d9a38c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 48px; max-width: 1240px; background: var(--Back); color: var(--Text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 19px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 0 0 6px; overflow-wrap: anywhere; } p.sub { margin: 0 0 16px; color: var(--Soft); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 16px; }
.card { background: var(--Card); border: 1px solid var(--Line); border-radius: 8px; padding: 14px 16px; min-width: 0; }
.card.scrolls { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg .grid { stroke: var(--Line); stroke-width: 1; } svg .axis { stroke: var(--Soft); stroke-width: 1; }
svg text { fill: var(--Text); font-size: 12px; font-family: inherit; } svg .tick { fill: var(--Soft); font-size: 11.5px; }
svg .curve { fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linejoin: round; }
svg .curve.eval { stroke-dasharray: 6 4; } svg circle { fill: currentColor; }
svg .hover { visibility: hidden; pointer-events: none; } svg .hover line { stroke: var(--Soft); stroke-dasharray: 3 3; }
.c0 { color: var(--0); } .c1 { color: var(--1); } .c2 { color: var(--2); } .c3 { color: var(--3); } .c4 { color: var(--4); }
.c5 { color: var(--5); } .c6 { color: var(--6); } .c7 { color: var(--7); } .c8 { color: var(--8); } .c9 { color: var(--9); }
.f0 { fill: var(--0); } .f1 { fill: var(--1); } .f2 { fill: var(--2); } .f3 { fill: var(--3); } .f4 { fill: var(--4); }
.f5 { fill: var(--5); } .f6 { fill: var(--6); } .f7 { fill: var(--7); } .f8 { fill: var(--8); } .f9 { fill: var(--9); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 8px; color: var(--Soft); font-size: 13px; }
.legend span { overflow-wrap: anywhere; } .legend i { display: inline-block; width: 18px; height: 0; margin-right: 6px;
  border-top: 3px solid currentColor; vertical-align: middle; } .legend i.eval { border-top-style: dashed; }
.legend i.box { width: 12px; height: 12px; border: 0; background: currentColor; border-radius: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--Line); vertical-align: top;
  overflow-wrap: anywhere; min-width: 7ch; } th { color: var(--Soft); font-weight: 600; }
tr:last-child td, tr:last-child th { border-bottom: 0; } td:first-child, th:first-child { width: min(30ch, 34%); }
.answers td:first-child, .answers th:first-child { width: 11ch; } tr.differs td { background: color-mix(in srgb, var(--4) 14%, transparent); }
.answer { white-space: pre-wrap; } .answer div { max-height: 11em; overflow-y: auto; } details { margin: 8px 0; } summary { cursor: pointer; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
#tip { position: fixed; visibility: hidden; pointer-events: none; background: var(--Card); color: var(--Text);
  border: 1px solid var(--Soft); border-radius: 6px; padding: 6px 10px; font-size: 13px; max-width: 360px;
  box-shadow: 0 2px 10px rgb(0 0 0 / 25%); font-variant-numeric: tabular-nums; }
#tip i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; background: currentColor; margin-right: 6px; }
)css";

const char* const kPageScript = R"js(
const charts = JSON.parse(document.getElementById('values').textContent);
const tip = document.getElementById('tip');
const element = (tag, text, style) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (style) made.className = style;
  return made;
};
const nearest = (points, step) =>
  points.reduce((best, p) => (Math.abs(best[0] - step) > Math.abs(p[0] - step) ? p : best));
document.querySelectorAll('svg.chart').forEach((svg, number) => {
  const chart = charts[number], hover = svg.querySelector('.hover'), line = hover.querySelector('line');
  const span = chart.steps[1] - chart.steps[0], width = chart.right - chart.left;
  const place = (step) => chart.left + (step - chart.steps[0]) / span * width;
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const pointed = chart.steps[0] + ((event.clientX - box.left) * chart.width / box.width - chart.left) / width * span;
    const found = chart.curves.filter((curve) => curve.points.length > 0)
      .map((curve) => ({curve, point: nearest(curve.points, pointed)}));
    if (found.length === 0) return;
    const step = nearest(found.map((f) => f.point), pointed)[0];
    tip.replaceChildren(element('b', 'step ' + step));
    hover.querySelectorAll('circle').forEach((circle) => circle.remove());
    line.setAttribute('x1', place(step));
    line.setAttribute('x2', place(step));
    found.forEach(({curve, point}) => {
      const row = element('div');
      const value = point[1] === null ? 'not a number' : String(Number(point[1].toPrecision(6)));
      row.append(element('i', '', 'c' + curve.color), curve.name + ': ' + value +
        (point[0] === step ? '' : ' (step ' + point[0] + ')'));
      tip.append(row);
      if (point[1] === null) return;
      const circle = document.createElementNS(svg.namespaceURI, 'circle');
      circle.setAttribute('class', 'c' + curve.color);
      circle.setAttribute('cx', place(point[0]));
      circle.setAttribute('cy', point[2]);
      circle.setAttribute('r', 4);
      hover.append(circle);
    });
    hover.style.visibility = tip.style.visibility = 'visible';
    const left = event.clientX + 16, room = innerWidth - tip.offsetWidth - 8;
    tip.style.left = (left > room ? Math.max(8, event.clientX - 16 - tip.offsetWidth) : left) + 'px';
    tip.style.top = Math.max(8, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)) + 'px';
  };
  const hide = () => { hover.style.visibility = tip.style.visibility = 'hidden'; };
  svg.addEventListener('pointermove', show);
  svg.addEventListener('pointerdown', show);
  svg.addEventListener('pointerleave', hide);
});
)js";

const char* const kReloadScript = "setTimeout(() => location.reload(), 20000);\n";

}  // namespace tessera::report
