// SPDX-License-Identifier: GPL-2.0-or-later
// One cluster: what it is, its nodes, what may be done with it.
import {ask, clusterPath, may} from '/api.js';
import {announce, h, keyedList, replace} from '/dom.js';
import {store} from '/live.js';
import {said, t} from '/text.js';
import {openDeclaration} from '/views/declaration.js';
import {eventRow} from '/views/events.js';
import {attempt, badge, hostText, openDialog} from '/views/parts.js';
import {plot} from '/views/plot.js';
import {topology} from '/views/topology.js';

const shownEvents = 12;

function askStop(cluster) {
  openDialog({
    title: t('Stop {name}?', {name: cluster.name}),
    content: h('p', {}, t('All nodes end. What guests have in memory is gone; the declaration stays.')),
    action: t('Stop'), danger: true,
    act: () => ask('POST', clusterPath(cluster.name, '/stop'), {revision: cluster.revision}),
  });
}

function askDelete(cluster) {
  const typed = h('input', {id: 'typed', autocomplete: 'off', spellcheck: 'false'});
  openDialog({
    title: t('Delete {name}?', {name: cluster.name}),
    content: [h('label', {for: 'typed'}, t('All nodes end, and the cluster is forgotten. Type its name:')), typed],
    action: t('Delete'), danger: true,
    ready: () => typed.value === cluster.name,
    act: () => ask('DELETE', clusterPath(cluster.name), {revision: cluster.revision}),
  });
}

function askDrill(cluster, node) {
  openDialog({
    title: t('Kill {node} on purpose?', {node: node.name}),
    content: h('p', {}, t('Its QEMU is killed as a power failure would do it. The standby goes on from the last checkpoint.')),
    action: t('Drill'), danger: true,
    act: () => ask('POST', clusterPath(cluster.name, `/nodes/${node.name}/drill`)),
  });
}

function askSwitchover(cluster, node) {
  openDialog({
    title: t('Move {node} to its standby?', {node: node.name}),
    content: h('p', {}, t('The VM pauses for a moment and goes on in its standby.')),
    action: t('Switchover'),
    act: () => ask('POST', clusterPath(cluster.name, `/nodes/${node.name}/switchover`)),
  });
}

const showLog = (cluster, node) => attempt(async () => {
  const log = await ask('GET', clusterPath(cluster.name, `/nodes/${node.name}/log`));
  const title = `${t('Log')} ${node.name}`;
  const lines = h('pre', {class: 'log', tabindex: 0, lang: 'en', 'aria-label': title}, log.lines.join('\n'));
  openDialog({title, content: lines, opened: () => { lines.scrollTop = lines.scrollHeight; }});
});

const slotText = (node, slot) => [slot || '–', hostText(node, slot)].filter(Boolean).join(' · ');

function nodeRow(cluster) {
  return (key, node) => {
    const cell = (label, ...content) => h('td', {'data-label': label}, content);
    const runs = ['running', 'protected', 'unprotected', 'taking over'].includes(node.state);
    return h('tr', {'data-node': node.name},
      h('th', {scope: 'row'}, node.name), cell(t('Address'), node.address),
      cell(t('State'), badge(node.state), node.needs_restart ? [' ', h('span', {class: 'badge warning'}, t('Needs a restart'))] : null,
        node.text ? h('div', {class: 'hint'}, said(node.text)) : null),
      cell(t('Runs in'), slotText(node, node.primary)), cell(t('Standby'), slotText(node, node.standby)),
      cell('', h('div', {class: 'buttons'},
        may('operator') && runs && h('a', {class: 'button', href: `#/clusters/${cluster().name}/${node.name}`,
          'aria-label': `${t('Console')} ${node.name}`}, t('Console')),
        may('operator') && h('button', {'aria-label': `${t('Log')} ${node.name}`, onclick: () => showLog(cluster(), node)}, t('Log')),
        may('operator') && node.state === 'protected' && [
          h('button', {'aria-label': `${t('Switchover')} ${node.name}`, onclick: () => askSwitchover(cluster(), node)}, t('Switchover')),
          h('button', {'aria-label': `${t('Drill')} ${node.name}`, onclick: () => askDrill(cluster(), node)}, t('Drill'))])));
  };
}

function buttons(cluster) {
  if (!may('operator') || cluster.wanted === 'deleted') return [];
  const stopped = cluster.wanted === 'stopped';
  return [
    stopped && h('button', {class: 'main', onclick: () => attempt(async () => {
      await ask('POST', clusterPath(cluster.name, '/start'), {revision: cluster.revision});
      announce(t('starting'));
    })}, t('Start')),
    !stopped && h('button', {onclick: () => askStop(cluster)}, t('Stop')),
    h('button', {onclick: () => openDeclaration(cluster)}, t('Change')),
    h('button', {class: 'danger', onclick: () => askDelete(cluster)}, t('Delete')),
  ];
}

const plotted = [
  {field: 'checkpoint_age_ms', title: 'Age of the last checkpoint, ms', ofProtected: true},
  {field: 'pause_us', title: 'Pause of a checkpoint, ms', scale: 0.001, ofProtected: true},
  {field: 'gpu_behind_ms', title: 'The standby’s GPU is behind, ms', ofProtected: true},
  {field: 'gpu_percent', title: 'Time of the shared GPU, percent'},
];

const column = text => h('th', {scope: 'col'}, text);

export function clusterView(name) {
  let cluster = null;
  const state = h('span');
  const actions = h('div', {class: 'buttons'});
  const gone = h('p', {hidden: true}, t('This cluster is not there (any more).'));
  const body = h('tbody');
  const update = keyedList(body, nodeRow(() => cluster));
  const picture = topology(name);
  const plots = h('div', {class: 'plots'});
  const plotOf = new Map();
  const events = h('tbody');
  const updateEvents = keyedList(events, (key, event) => eventRow(event, false));
  const content = h('div', {}, picture.element,
    h('table', {class: 'nodes'}, h('caption', {class: 'hidden'}, t('Nodes')), h('thead', {}, h('tr', {},
      [t('Node'), t('Address'), t('State'), t('Runs in'), t('Standby'), t('Actions')].map(column))), body),
    plots,
    h('h2', {}, t('Events')),
    h('table', {class: 'events'}, h('caption', {class: 'hidden'}, t('Events')),
      h('thead', {class: 'hidden'}, h('tr', {}, [t('Time'), t('What')].map(column))), events));
  let drawn = null;

  function drawPlots() {
    for (const {name: node} of cluster.node_states) {
      const values = store.gauges.get(name)?.get(node) ?? {};
      const isProtected = Boolean(values.checkpoints?.at(-1)); // it has a standby, and not only a wish for one
      for (const {field, title, scale = 1, ofProtected} of plotted) {
        if (!values[field] || ofProtected && !isProtected) continue;
        const key = `${node} ${field}`;
        if (!plotOf.has(key)) {
          plotOf.set(key, plot(`${node}: ${t(title)}`));
          plots.append(plotOf.get(key).element);
        }
        plotOf.get(key).update(values[field].map(value => value * scale));
      }
    }
  }

  return {
    element: h('div', {},
      h('div', {class: 'title'}, h('h1', {}, name), state, h('span', {class: 'space'}), actions), gone, content),
    title: name,
    update() {
      cluster = store.clusters.get(name) ?? null;
      const missing = !cluster && store.connected;
      gone.hidden = !missing;
      content.hidden = !cluster;
      if (missing) {
        replace(state);
        replace(actions);
        drawn = null;
      }
      if (!cluster) return;
      if (cluster !== drawn) {
        drawn = cluster;
        replace(state, badge(cluster.state));
        const focused = actions.contains(document.activeElement) ? [...actions.children].indexOf(document.activeElement) : -1;
        replace(actions, buttons(cluster));
        if (focused >= 0) actions.children[focused]?.focus();
        update(cluster.node_states.map(node => [node.name, node]));
        picture.update(cluster.node_states);
      }
      drawPlots();
      updateEvents(store.events.filter(event => event.cluster === name).slice(-shownEvents).reverse().map(event => [event.number, event]));
    },
  };
}
