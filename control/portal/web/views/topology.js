// SPDX-License-Identifier: GPL-2.0-or-later
// A cluster as a picture: its network, its nodes, and for each node its two slots. The mark of a VM moves from one slot to the other
// when it is taken over. The table below it has the same as text.
import {h, replace} from '/dom.js';
import {t} from '/text.js';
import {hostText, kindOf} from '/views/parts.js';

const width = 168;
const height = 96;
const perRow = 5;
const top = 46;
const longestHost = 10; // letters below a slot

function nodePicture(node, index) {
  const x = (index % perRow) * width;
  const y = top + Math.floor(index / perRow) * height;
  const mark = h('circle', {class: 'mark', r: 7});
  const line = h('line', {class: 'mirror', x1: 72, x2: 88, y1: 48, y2: 48});
  const slots = ['a', 'b'].map((letter, i) => {
    const box = h('rect', {x: 12 + i * 76, y: 28, width: 60, height: 40, rx: 6});
    const where = h('text', {class: 'where', x: 14 + i * 76, y: 79});
    return {letter, box, where, element: h('g', {}, box, h('text', {x: 22 + i * 76, y: 60}, letter), where)};
  });
  const frame = h('rect', {x: 4, y: 4, width: width - 8, height: height - 14, rx: 8, class: 'frame'});
  const label = h('text', {x: 12, y: 21, class: 'name'}, node.name);
  const state = h('text', {x: width - 12, y: 21, 'text-anchor': 'end', class: 'state'});
  const element = h('g', {transform: `translate(${x} ${y})`}, frame, label, state, line, slots.map(one => one.element), mark);
  return {
    element,
    update(now) {
      state.textContent = t(now.state);
      frame.setAttribute('class', `frame ${kindOf(now.state)}`);
      line.setAttribute('visibility', now.state === 'protected' ? 'visible' : 'hidden');
      for (const {letter, box, where} of slots) {
        box.setAttribute('class', now.primary === letter ? 'slot primary' : now.standby === letter ? 'slot standby' : 'slot');
        where.textContent = hostText(now, letter).slice(0, longestHost);
      }
      // While it is taken over, its VM is on its way to the standby.
      const at = now.primary || now.standby;
      mark.setAttribute('class', `mark ${kindOf(now.state)}`);
      mark.setAttribute('visibility', at ? 'visible' : 'hidden');
      if (at) mark.style.transform = `translate(${at === 'a' ? 52 : 128}px, 48px)`;
    },
  };
}

export function topology(name) {
  const nodes = h('g');
  const wires = h('path', {class: 'wire'});
  const net = h('rect', {class: 'net', x: 4, y: 4, height: 24, rx: 6});
  const element = h('svg', {class: 'topology', role: 'img'}, wires, net,
    h('text', {x: 14, y: 21, class: 'name'}, t('Network')), nodes);
  const drawn = new Map();
  let names = '';
  return {
    element,
    update(states) {
      const wanted = states.map(node => node.name).join();
      if (wanted !== names) {
        names = wanted;
        drawn.clear();
        states.forEach((node, index) => drawn.set(node.name, nodePicture(node, index)));
        replace(nodes, [...drawn.values()].map(one => one.element));
        const columns = Math.min(states.length, perRow);
        const rows = Math.max(1, Math.ceil(states.length / perRow));
        element.setAttribute('viewBox', `0 0 ${Math.max(columns, 2) * width} ${top + rows * height}`);
        element.style.maxWidth = `${Math.max(columns, 2) * width}px`;
        net.setAttribute('width', Math.max(columns, 2) * width - 8);
        wires.setAttribute('d', states.slice(0, perRow).map((node, index) => `M${index * width + width / 2} 28v22`).join(''));
      }
      for (const node of states) drawn.get(node.name).update(node);
      element.setAttribute('aria-label', t('Topology of {name}: {states}',
        {name, states: states.map(node => [node.name, t(node.state), hostText(node, node.primary)].filter(Boolean).join(' ')).join(', ')}));
    },
  };
}
