// SPDX-License-Identifier: GPL-2.0-or-later
// The page: who is logged in, which view the address names (#/clusters/lab), and the header around it.
import {loadSession, logIn, logOut, may, session} from '/api.js';
import {announce, h, replace} from '/dom.js';
import {onChange, startLive, stopLive, store} from '/live.js';
import {language, setLanguage, t} from '/text.js';
import {clustersView} from '/views/clusters.js';
import {clusterView} from '/views/cluster.js';
import {eventsView} from '/views/events.js';
import {loginView} from '/views/login.js';

const main = document.getElementById('main');
const header = document.getElementById('header');
let view = null; // {element, update(), close()}

const routes = [
  [/^#\/clusters\/([a-z][a-z0-9-]*)$/, name => clusterView(name)],
  [/^#\/clusters\/([a-z][a-z0-9-]*)\/(node\d+)$/, async (name, node) => (await import('/views/console.js')).consoleView(name, node)],
  [/^#\/hosts$/, async () => (await import('/views/hosts.js')).hostsView()],
  [/^#\/events$/, () => eventsView()],
  [/^#\/people$/, async () => (await import('/views/people.js')).peopleView()],
];

function link(to, text) {
  const current = to === '#/' ? !/^#\/(hosts|events|people)/.test(location.hash) : location.hash.startsWith(to);
  return h('a', {href: to, 'aria-current': current ? 'page' : null}, text);
}

function drawHeader() {
  const choice = h('select', {id: 'language', 'aria-label': t('Language'), onchange: event => {
    setLanguage(event.target.value);
    show();
    document.getElementById('language').focus();
  }}, [['en', 'English'], ['ja', '日本語']].map(([value, name]) =>
    h('option', {value, lang: value, selected: value === language}, name)));
  document.getElementById('skip').textContent = t('Skip to content');
  replace(header,
    h('a', {class: 'brand', href: '#/'}, h('img', {src: '/icon.svg', alt: '', width: 20, height: 20}), 'Kagemusha'),
    session.user && h('nav', {'aria-label': 'Kagemusha'}, link('#/', t('Clusters')), link('#/hosts', t('Hosts')), link('#/events', t('Events')),
      may('admin') && link('#/people', t('People'))),
    h('span', {class: 'space'}),
    session.user && h('span', {id: 'connection', class: 'connection'}),
    choice,
    session.user && h('span', {class: 'who'}, `${session.user} (${session.role})`),
    session.user && h('button', {onclick: leave}, t('Log out')));
  drawConnection();
}

function drawConnection() {
  const at = document.getElementById('connection');
  if (!at) return;
  const text = store.connected ? t('Live') : t('Connection lost; trying again …');
  if (at.textContent === text) return;
  at.textContent = text;
  at.classList.toggle('lost', !store.connected);
}

async function leave() {
  await logOut().catch(refusal => announce(refusal.message));
  loggedOut();
}

function loggedOut() {
  session.user = '';
  session.role = 'nobody';
  stopLive();
  show();
}

async function make() {
  if (!session.user) return loginView(() => { startLive(); show(); });
  for (const [pattern, open] of routes) {
    const found = location.hash.match(pattern);
    if (found) return open(...found.slice(1));
  }
  return clustersView();
}

let shows = 0;
async function show() {
  const mine = ++shows;
  document.documentElement.lang = language;
  view?.close?.();
  const next = await make();
  if (mine !== shows) {
    next.close?.();
    return;
  }
  view = next;
  drawHeader();
  replace(main, view.element);
  view.update?.();
  document.title = `${view.title ? view.title + ' · ' : ''}Kagemusha`;
}

// The link that `kage portal` prints. Its code is good once, so it goes from the address before anything else.
async function useCode() {
  const code = location.hash.match(/^#login=([0-9a-f]+)$/);
  if (!code) return;
  history.replaceState(null, '', '#/');
  await logIn({code: code[1]}).catch(refusal => announce(refusal.message));
}

addEventListener('hashchange', async () => {
  if (location.hash.startsWith('#login=')) {
    await useCode();
    if (session.user) startLive();
  }
  await show();
  main.focus({preventScroll: true});
  scrollTo(0, 0);
});
addEventListener('logged-out', loggedOut);
onChange(() => {
  drawConnection();
  view?.update?.();
});

await useCode();
if (session.user || await loadSession().catch(refusal => announce(refusal.message))) startLive();
await show();
