// SPDX-License-Identifier: GPL-2.0-or-later
// Words for people, in their language. A key is the English text; what the daemon itself says stays English, and is marked so.
import {h} from '/dom.js';
import {japanese} from '/text/ja.js';

const languages = {en: {}, ja: japanese};
const key = 'kagemusha-language';

function wanted() {
  const kept = localStorage.getItem(key);
  if (kept in languages) return kept;
  return navigator.languages.map(name => name.slice(0, 2)).find(name => name in languages) ?? 'en';
}

export let language = wanted();
document.documentElement.lang = language;

export function setLanguage(name) {
  localStorage.setItem(key, name);
  language = name;
  document.documentElement.lang = name;
}

/** t('{n} nodes', {n: 2}) */
export function t(text, values = {}) {
  const found = languages[language][text] ?? text;
  return found.replace(/\{(\w+)\}/g, (whole, name) => name in values ? values[name] : whole);
}

/** A sentence of the daemon's. */
export const said = text => h('span', {lang: 'en'}, text);

export const clock = at => new Date(at).toLocaleTimeString(language);
