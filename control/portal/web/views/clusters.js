// SPDX-License-Identifier: GPL-2.0-or-later
// All clusters of the host: what each one is, and every node of it as a square.
import {may} from '/api.js';
import {h, keyedList, replace} from '/dom.js';
import {store} from '/live.js';
import {t} from '/text.js';
import {openDeclaration} from '/views/declaration.js';
import {badge, kindOf, mib} from '/views/parts.js';

function nodesText(cluster) {
  const counts = new Map();
  for (const node of cluster.node_states ?? []) counts.set(node.state, (counts.get(node.state) ?? 0) + 1);
  return [...counts].map(([state, count]) => `${count} ${t(state)}`).join(', ') || String(cluster.nodes);
}

function row(name, cluster) {
  const squares = (cluster.node_states ?? []).map(node =>
    h('i', {class: kindOf(node.state), title: `${node.name}: ${t(node.state)}`}));
  return h('li', {class: 'card cluster', 'data-name': name},
    h('h2', {}, h('a', {href: `#/clusters/${name}`}, name)),
    badge(cluster.state),
    h('span', {class: 'counts'}, nodesText(cluster)),
    h('span', {class: 'squares', 'aria-hidden': 'true'}, squares));
}

export function clustersView() {
  const host = h('p', {class: 'hint'});
  const list = h('ul', {class: 'clusters', 'aria-label': t('Clusters')});
  const none = h('p', {hidden: true}, t('There is no cluster yet.'));
  const update = keyedList(list, row);
  const element = h('div', {},
    h('div', {class: 'title'}, h('h1', {}, t('Clusters')),
      may('operator') && h('button', {class: 'main', id: 'new-cluster', onclick: () => openDeclaration(null)}, t('New cluster'))),
    host, none, list);
  return {
    element,
    title: t('Clusters'),
    update() {
      if (store.host) {
        const {name, version, offers, etcd} = store.host;
        replace(host, `${t('Host {name}', {name})} (${version}): `,
          t('{cpus} CPUs, {memory} for nodes', {cpus: offers.cpus, memory: mib(offers.memory_mib)}),
          etcd ? h('strong', {class: 'problem', lang: 'en'}, ` ${etcd}`) : null);
      }
      none.hidden = !store.connected || store.clusters.size > 0;
      update([...store.clusters].sort(([a], [b]) => a < b ? -1 : 1));
    },
  };
}
