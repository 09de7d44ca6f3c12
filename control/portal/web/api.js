// SPDX-License-Identifier: GPL-2.0-or-later
// Requests to the daemon. Changes carry the session's CSRF token and, where a cluster is changed, the revision that the page shows.

export const session = {user: '', role: 'nobody', csrf: ''};

export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function ask(method, path, {body, revision} = {}) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (revision) headers['If-Match'] = `"${revision}"`;
  if (method !== 'GET' && session.csrf) headers['X-CSRF-Token'] = session.csrf;
  let answer;
  try {
    answer = await fetch(path, {method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: 'same-origin'});
  } catch {
    throw new Refusal(0, 'The daemon does not answer.');
  }
  const said = await answer.json().catch(() => ({error: 'The daemon’s answer can’t be read.'}));
  if (!answer.ok) {
    if (answer.status === 401 && path !== '/v1/session') dispatchEvent(new Event('logged-out'));
    throw new Refusal(answer.status, said.error ?? String(answer.status));
  }
  return said;
}

export async function loadSession() {
  try {
    Object.assign(session, await ask('GET', '/v1/session'));
    return true;
  } catch (refusal) {
    Object.assign(session, {user: '', role: 'nobody', csrf: ''});
    if (refusal.status === 401) return false;
    throw refusal;
  }
}

export async function logIn(words) {
  Object.assign(session, await ask('POST', '/v1/session', {body: words}));
}

export async function logOut() {
  await ask('DELETE', '/v1/session');
  Object.assign(session, {user: '', role: 'nobody', csrf: ''});
}

const order = ['nobody', 'viewer', 'operator', 'admin'];
export const may = role => order.indexOf(session.role) >= order.indexOf(role);

export const clusterPath = (name, more = '') => `/v1/clusters/${encodeURIComponent(name)}${more}`;
