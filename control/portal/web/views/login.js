// SPDX-License-Identifier: GPL-2.0-or-later
// A user's name and password.
import {logIn} from '/api.js';
import {h} from '/dom.js';
import {said, t} from '/text.js';

export function loginView(done) {
  const problem = h('p', {class: 'problem', role: 'alert'});
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
    h('button', {class: 'main'}, t('Log in')), h('p', {class: 'hint'}, t('Run `kage portal` on the host for a link that logs you in.')));
  return {element, title: t('Log in')};
}
