// SPDX-License-Identifier: GPL-2.0-or-later
// A user's name and password; a way to an organisation's own page, and what came of it.
import {ask, logIn} from '/api.js';
import {h} from '/dom.js';
import {said, t} from '/text.js';

// Words of the address at which a browser comes back from the provider.
const ends = {
  stale: 'This login was not begun here, or too long ago. Try again.',
  refused: 'The login was refused there.',
  nobody: 'You are known, but have no role here. Ask an administrator.',
  wrong: 'The login did not work. The daemon’s log says why.',
};

function endOfLogin() {
  const found = location.hash.match(/^#login-([a-z]+)$/);
  if (!found) return null;
  history.replaceState(null, '', '#/');
  return ends[found[1]] ? t(ends[found[1]]) : null;
}

export async function loginView(done) {
  const ways = await ask('GET', '/v1/login').catch(() => ({pam: false, oidc: ''}));
  const problem = h('p', {class: 'problem', role: 'alert'}, endOfLogin());
  const user = h('input', {id: 'user', autocomplete: 'username', required: true});
  const password = h('input', {id: 'password', type: 'password', autocomplete: 'current-password', required: true});
  const send = async event => {
    event.preventDefault();
    problem.replaceChildren();
    try {
      await logIn({user: user.value, password: password.value});
      done();
    } catch (refusal) {
      problem.append(said(refusal.message));
      password.value = '';
      password.focus();
    }
  };
  const element = h('form', {class: 'card login', onsubmit: send}, h('h1', {}, t('Log in')),
    h('label', {for: 'user'}, t('User')), user, h('label', {for: 'password'}, t('Password')), password, problem,
    h('button', {class: 'main'}, t('Log in')),
    ways.oidc && h('a', {class: 'elsewhere', href: '/v1/login/oidc'}, t('Log in with {name}', {name: ways.oidc})),
    ways.pam && h('p', {class: 'hint'}, t('Users of this host log in with its passwords.')), h('p', {class: 'hint'}, t('Run `kage portal` on the host for a link that logs you in.')));
  return {element, title: t('Log in')};
}
