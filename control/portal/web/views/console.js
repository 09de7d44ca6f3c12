// SPDX-License-Identifier: GPL-2.0-or-later
// A shell in a node: xterm.js, of Debian's package libjs-xterm, over a WebSocket.
import {h} from '/dom.js';
import {said, t} from '/text.js';

const fontSize = 14;

function load() {
  if (window.Terminal) return Promise.resolve();
  document.head.append(h('link', {rel: 'stylesheet', href: '/xterm/xterm.css'}));
  return new Promise((done, failed) => {
    const loaded = () => window.Terminal ? done() : failed(); // Debian 12's has nothing in it
    document.head.append(h('script', {src: '/xterm/xterm.js', onload: loaded, onerror: failed}));
  });
}

// xterm.js itself can't be asked without an addon.
function sizeFor(place) {
  const probe = h('span', {class: 'probe'}, 'W'.repeat(20));
  place.append(probe);
  const {width, height} = probe.getBoundingClientRect();
  probe.remove();
  const clamp = (value, least, most) => Math.max(least, Math.min(most, Math.floor(value)));
  return {columns: clamp((place.clientWidth - 24) / (width / 20), 20, 300), rows: clamp((innerHeight * 0.6) / Math.max(height, fontSize * 1.2), 10, 80)};
}

export function consoleView(name, node) {
  const place = h('div', {class: 'terminal'});
  const status = h('p', {class: 'hint', role: 'status'}, t('Connecting …'));
  const back = h('a', {class: 'button', href: `#/clusters/${name}`}, t('Close'));
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, `${name} ${node}`), h('span', {class: 'space'}), back),
    status, place, h('p', {class: 'hint'}, t('Ctrl+F6 leaves the terminal.')));
  let socket = null;
  let terminal = null;
  let closed = false;

  function open() {
    const size = sizeFor(place);
    terminal = new window.Terminal({cols: size.columns, rows: size.rows, fontSize, screenReaderMode: true, cursorBlink: false});
    terminal.open(place);
    terminal.attachCustomKeyEventHandler(event => {
      if (event.key !== 'F6' || !event.ctrlKey) return true;
      back.focus();
      return false;
    });
    const decoder = new TextDecoder();
    const encoder = new TextEncoder();
    socket = new WebSocket(`wss://${location.host}/v1/clusters/${name}/nodes/${node}/console`);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => socket.send(JSON.stringify(size));
    socket.onmessage = ({data}) => {
      if (typeof data === 'string') {
        const last = JSON.parse(data);
        status.replaceChildren(last.error ? said(last.error) : t('Ended with status {status}.', {status: last.exit}));
        closed = true;
        return;
      }
      if (status.textContent) status.replaceChildren();
      terminal.write(decoder.decode(data, {stream: true}));
    };
    socket.onclose = () => {
      if (!closed) status.replaceChildren(t('The connection was lost.'));
    };
    const type = text => {
      const bytes = encoder.encode(text);
      for (let at = 0; at < bytes.length && socket.readyState === WebSocket.OPEN; at += 8192) socket.send(bytes.slice(at, at + 8192));
    };
    terminal.onData(type);
    terminal.focus();
  }

  return {
    element,
    title: `${name} ${node}`,
    started: false,
    update() {
      if (this.started) return;
      this.started = true;
      load().then(() => !closed && open(), () => status.replaceChildren(t('The terminal needs Debian 13’s package libjs-xterm on the host.')));
    },
    close() {
      closed = true;
      socket?.close();
    },
  };
}
