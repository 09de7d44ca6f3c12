// SPDX-License-Identifier: GPL-2.0-or-later
// What several views have: a state as a word with a colour, sizes, and dialogs.
import {Refusal} from '/api.js';
import {announce, h} from '/dom.js';
import {store} from '/live.js';
import {said, t} from '/text.js';

const kinds = {
  running: 'good', protected: 'good', stopped: 'quiet', starting: 'busy', stopping: 'busy', deleting: 'busy',
  unprotected: 'warning', 'taking over': 'warning', waiting: 'warning', failed: 'bad', unreachable: 'bad',
  ready: 'good', 'another release': 'warning',
};
export const kindOf = state => kinds[state] ?? 'quiet';

/** The host that has this slot of a node; nothing where there is only one. */
export const hostText = (node, slot) => store.hosts.length > 1 && slot ? node.hosts?.[slot] ?? '' : '';

export const badge = state => h('span', {class: `badge ${kindOf(state)}`}, t(state));

export function mib(number) {
  return number >= 1024 ? `${(number / 1024).toFixed(number % 1024 ? 1 : 0)} GiB` : `${number} MiB`;
}

export function sentence(refusal) {
  const conflict = refusal instanceof Refusal && refusal.status === 409 && refusal.message.includes('somebody else');
  return conflict ? t('Somebody else has changed this cluster meanwhile. Close this, look at it, and try again.') : said(refusal.message);
}

/**
 * A dialog with a form. `act` is called with what was filled in; when it fails the dialog stays and says why. The focus goes back to
 * where it was.
 */
export function openDialog({title, content, action, danger = false, act, ready = () => true, opened = () => {}}) {
  const before = document.activeElement;
  const problem = h('p', {class: 'problem', role: 'alert'});
  const button = h('button', {class: danger ? 'main danger' : 'main', type: 'submit'}, action);
  const dialog = h('dialog', {'aria-labelledby': 'dialog-title'});
  const check = () => { button.disabled = !ready(); };
  const send = async event => {
    event.preventDefault();
    button.disabled = true;
    problem.replaceChildren();
    try {
      await act();
      dialog.close();
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      problem.append(sentence(refusal));
    }
    check();
  };
  dialog.append(h('form', {onsubmit: send, oninput: check}, h('h2', {id: 'dialog-title'}, title), content, problem,
    h('div', {class: 'buttons'}, h('button', {type: 'button', onclick: () => dialog.close()}, act ? t('Cancel') : t('Close')), act && button)));
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  check();
  opened(check);
}

/** Does it at once; a refusal is announced. */
export async function attempt(work) {
  try {
    await work();
  } catch (refusal) {
    if (!(refusal instanceof Refusal)) throw refusal;
    announce(refusal.message);
  }
}
