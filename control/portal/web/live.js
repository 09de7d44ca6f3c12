// SPDX-License-Identifier: GPL-2.0-or-later
// What the daemon sends of itself: the newest state of everything, over one WebSocket. Views listen for 'change' and draw what
// the store has; what came meanwhile is drawn once, with the next frame.

import {loadSession} from '/api.js';

const longestHistory = 300; // values of a plot: one a second
const mostEvents = 300;

export const store = {
  host: null,
  hosts: [], // as GET /v1/hosts
  clusters: new Map(), // name → as GET /v1/clusters/NAME
  gauges: new Map(), // name → node → {field: [values]}
  events: [],
  connected: false,
};

const changes = new EventTarget();
export function onChange(listener) {
  changes.addEventListener('change', listener);
  return () => changes.removeEventListener('change', listener);
}

let drawing = false;
function changed() {
  if (drawing) return;
  drawing = true;
  const draw = () => {
    drawing = false;
    changes.dispatchEvent(new Event('change'));
  };
  if (document.hidden) setTimeout(draw, 250);
  else requestAnimationFrame(draw);
}

function addGauges(name, nodes) {
  const known = store.gauges.get(name) ?? new Map();
  store.gauges.set(name, known);
  for (const [node, values] of Object.entries(nodes)) {
    const history = known.get(node) ?? {};
    known.set(node, history);
    for (const [field, value] of Object.entries(values)) {
      const list = history[field] ?? (history[field] = []);
      list.push(value);
      if (list.length > longestHistory) list.shift();
    }
  }
}

const take = {
  host: message => { store.host = message.host; },
  hosts: message => { store.hosts = message.hosts; },
  cluster: message => store.clusters.set(message.cluster.name, message.cluster),
  gone: message => {
    store.clusters.delete(message.name);
    store.gauges.delete(message.name);
  },
  gauges: message => addGauges(message.name, message.gauges),
  event: message => {
    if (store.events.at(-1)?.number >= message.number) return; // it was there before the connection was lost
    store.events.push(message);
    if (store.events.length > mostEvents) store.events.shift();
  },
};

let socket = null;
let retryMs = 500;
let wanted = false;

function connect() {
  socket = new WebSocket(`wss://${location.host}/v1/live`);
  let first = true;
  socket.onmessage = ({data}) => {
    if (first) store.clusters.clear(); // what is gone since is not said
    first = false;
    store.connected = true;
    retryMs = 500;
    for (const message of JSON.parse(data)) take[message.type]?.(message);
    changed();
  };
  socket.onclose = ({code}) => {
    store.connected = false;
    changed();
    if (code === 1008) {
      dispatchEvent(new Event('logged-out'));
      return;
    }
    // A WebSocket that was refused does not say why: a daemon that has started again knows no session.
    if (first && wanted) loadSession().then(known => known || dispatchEvent(new Event('logged-out')), () => {});
    if (wanted) setTimeout(() => wanted && connect(), retryMs);
    retryMs = Math.min(retryMs * 2, 10000);
  };
}

export function startLive() {
  wanted = true;
  if (!socket || socket.readyState > WebSocket.OPEN) connect();
}

export function stopLive() {
  wanted = false;
  socket?.close();
  socket = null;
  store.clusters.clear();
  store.events.length = 0;
  store.host = null;
  store.hosts = [];
}
