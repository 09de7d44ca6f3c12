// SPDX-License-Identifier: GPL-2.0-or-later
// For administrators: users, tokens, and who has done what.
import {ask} from '/api.js';
import {announce, h, replace} from '/dom.js';
import {clock, t} from '/text.js';
import {attempt, openDialog} from '/views/parts.js';

const roles = ['viewer', 'operator', 'admin'];

function table(title, columns, rows) {
  return h('table', {}, h('caption', {class: 'hidden'}, title),
    h('thead', {}, h('tr', {}, columns.map(text => h('th', {scope: 'col'}, text)))), h('tbody', {}, rows));
}

function row(...cells) {
  return h('tr', {}, cells.map(cell => h('td', {}, cell)));
}

export function peopleView() {
  const users = h('div');
  const tokens = h('div');
  const audit = h('div');

  async function load() {
    const known = await ask('GET', '/v1/accounts');
    const remove = (kind, name) => h('button', {'aria-label': `${t('Remove')} ${name}`, onclick: () => attempt(async () => {
      await ask('DELETE', `/v1/${kind}/${encodeURIComponent(name)}`);
      await load();
    })}, t('Remove'));
    replace(users, table(t('Users'), [t('Name'), t('Role'), t('Actions')],
      known.users.map(one => row(one.name, one.role, remove('users', one.name)))));
    replace(tokens, table(t('Tokens'), [t('Name'), t('Role'), t('Expires'), t('Actions')],
      known.tokens.map(one => row(one.name, one.role, new Date(one.expires_at_s * 1000).toLocaleDateString(), remove('tokens', one.name)))));
    const {entries} = await ask('GET', '/v1/audit');
    replace(audit, table(t('Audit log'), [t('Time'), t('User'), t('From'), t('What'), t('Result')],
      entries.reverse().map(one => row(clock(one.at), one.user, one.from, `${one.method} ${one.target}`, String(one.status)))));
  }

  function openAccount(kind) {
    const isUser = kind === 'users';
    const name = h('input', {id: 'account', required: true, pattern: '[a-z][a-z0-9._\\-]{0,31}', autocomplete: 'off'});
    const role = h('select', {id: 'role'}, roles.map(value => h('option', {value}, value)));
    const password = h('input', {id: 'new-password', type: 'password', required: true, minlength: 8, autocomplete: 'new-password'});
    openDialog({
      title: isUser ? t('Add user') : t('Add token'),
      content: h('div', {class: 'fields'}, h('label', {for: 'account'}, t('Name')), name, h('label', {for: 'role'}, t('Role')), role,
        isUser && [h('label', {for: 'new-password'}, t('Password')), password]),
      action: isUser ? t('Add user') : t('Add token'),
      ready: () => name.validity.valid && name.value !== '' && (!isUser || password.validity.valid),
      act: async () => {
        const body = isUser ? {role: role.value, password: password.value} : {role: role.value};
        const made = await ask('PUT', `/v1/${kind}/${encodeURIComponent(name.value)}`, {body});
        await load();
        if (made.token) showToken(made.token);
        else announce(made.name);
      },
    });
  }

  function showToken(token) {
    replace(shown, h('p', {class: 'card', role: 'status'}, t('The token, which is shown only now:'), ' ', h('code', {}, token)));
  }

  const shown = h('div');
  const element = h('div', {}, h('h1', {}, t('People')),
    h('div', {class: 'title'}, h('h2', {}, t('Users')), h('button', {onclick: () => openAccount('users')}, t('Add user'))), users,
    h('div', {class: 'title'}, h('h2', {}, t('Tokens')), h('button', {onclick: () => openAccount('tokens')}, t('Add token'))), shown, tokens,
    h('h2', {}, t('Audit log')), audit);
  attempt(load);
  return {element, title: t('People')};
}
