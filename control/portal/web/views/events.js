// SPDX-License-Identifier: GPL-2.0-or-later
// What has happened, the newest first.
import {h, keyedList} from '/dom.js';
import {store} from '/live.js';
import {clock, said, t} from '/text.js';

export function eventRow(event, withCluster) {
  return h('tr', {}, h('td', {}, h('time', {datetime: event.at, title: event.at}, clock(event.at))),
    withCluster && h('td', {}, event.cluster.startsWith('(') || !event.cluster ? event.cluster
      : h('a', {href: `#/clusters/${event.cluster}`}, event.cluster)),
    h('td', {}, said(event.text)));
}

export function eventsView() {
  const body = h('tbody');
  const update = keyedList(body, (key, event) => eventRow(event, true));
  const element = h('div', {}, h('h1', {}, t('Events')), h('table', {class: 'events'},
    h('caption', {class: 'hidden'}, t('Events')),
    h('thead', {}, h('tr', {}, [t('Time'), t('Cluster'), t('What')].map(text => h('th', {scope: 'col'}, text)))), body));
  return {
    element,
    title: t('Events'),
    update: () => update(store.events.toReversed().map(event => [event.number, event])),
  };
}
