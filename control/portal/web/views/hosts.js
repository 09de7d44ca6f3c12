// SPDX-License-Identifier: GPL-2.0-or-later
// All hosts: whether they are there, what they give nodes, and what of it is taken, kept for takeovers, and free.
import {h, keyedList} from '/dom.js';
import {store} from '/live.js';
import {t} from '/text.js';
import {badge, mib} from '/views/parts.js';

const column = text => h('th', {scope: 'col'}, text);
const left = (offers, ...taken) => Math.max(0, offers - taken.reduce((sum, one) => sum + one, 0));

function row(name, host) {
  const cell = (label, ...content) => h('td', {'data-label': label}, content);
  const {offers, used, reserved_cpus: reserved} = host;
  return h('tr', {'data-host': name},
    h('th', {scope: 'row'}, host.shown, host.leads ? [' ', h('span', {class: 'badge quiet'}, t('Places'))] : null),
    cell(t('State'), badge(host.state), host.version ? h('div', {class: 'hint'}, host.version) : null),
    cell(t('VMs'), t('{n}, and {s} standbys', {n: host.vms, s: host.standbys})),
    cell(t('CPUs'), t('{free} free of {all}; {used} taken, {kept} kept for takeovers',
      {free: left(offers.cpus, used.cpus, reserved), all: offers.cpus, used: used.cpus, kept: reserved})),
    cell(t('Memory'), t('{free} free of {all}', {free: mib(left(offers.memory_mib, used.memory_mib)), all: mib(offers.memory_mib)})),
    cell(t('GPU'), t('{free} % free of {all} %', {free: left(offers.gpu_percent, used.gpu_percent), all: offers.gpu_percent})));
}

export function hostsView() {
  const body = h('tbody');
  const update = keyedList(body, row);
  return {
    element: h('div', {}, h('h1', {}, t('Hosts')),
      h('p', {class: 'hint'}, t('A standby has its node’s memory and share of the GPU all the time; its CPUs are kept for a takeover.')),
      h('table', {class: 'nodes'}, h('caption', {class: 'hidden'}, t('Hosts')),
        h('thead', {}, h('tr', {}, [t('Host'), t('State'), t('VMs'), t('CPUs'), t('Memory'), t('GPU')].map(column))), body)),
    title: t('Hosts'),
    update: () => update(store.hosts.map(host => [host.name, host])),
  };
}
