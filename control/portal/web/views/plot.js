// SPDX-License-Identifier: GPL-2.0-or-later
// The last minutes of one value as a line, one point a second.
import {h} from '/dom.js';

const width = 300;
const height = 60;
const points = 300;

export function plot(title) {
  const line = h('polyline', {class: 'line'});
  const now = h('strong');
  const most = h('span', {class: 'hint'});
  const picture = h('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'}, line);
  let shown = '';
  return {
    element: h('figure', {class: 'card plot'}, h('figcaption', {}, title, ' ', now, ' ', most), picture),
    update(values) {
      const top = Math.max(...values, 1);
      const from = points - values.length;
      const text = values.map((value, i) => `${((from + i) * width / (points - 1)).toFixed(1)},${(height - 2 - value / top * (height - 6)).toFixed(1)}`).join(' ');
      if (text === shown) return;
      shown = text;
      line.setAttribute('points', text);
      const round = value => value >= 100 ? value.toFixed(0) : value.toFixed(1);
      now.textContent = round(values.at(-1));
      most.textContent = `≤ ${round(top)}`;
    },
  };
}
