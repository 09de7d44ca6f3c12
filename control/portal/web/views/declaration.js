// SPDX-License-Identifier: GPL-2.0-or-later
// What is declared of a cluster, as a form: of a new one, or of one that is there. Its plan is shown before it is applied.
import {ask, clusterPath} from '/api.js';
import {announce, h, replace} from '/dom.js';
import {store} from '/live.js';
import {said, t} from '/text.js';
import {mib, openDialog, sentence} from '/views/parts.js';

const planAfterMs = 250; // of the last key

function number(id, label, value, least, most, required = true) {
  return [h('label', {for: id}, label), h('input', {id, type: 'number', value, min: least, max: most, required})];
}

function check(id, label, checked) {
  return h('p', {class: 'check'}, h('input', {id, type: 'checkbox', checked}), h('label', {for: id}, label));
}

// Only with a system that has an ssh server.
function logins(declared) {
  const users = (declared?.users ?? []).flatMap(user => user.keys.map(key => `${user.name} ${key}`));
  const network = declared?.network;
  return h('fieldset', {id: 'logins', class: 'fields', 'aria-label': t('Logins by ssh'), hidden: !declared?.image, disabled: !declared?.image},
    h('label', {for: 'users', class: 'wide'}, t('Users besides root, a line each: name and public key')),
    h('textarea', {id: 'users', class: 'wide', rows: 2, autocomplete: 'off', spellcheck: 'false'}, users.join('\n')),
    number('ssh-port', t('Port of the host that leads to node1 (empty: none)'), network?.['ssh-port'] || '', 1, 65535, false),
    h('label', {for: 'ssh-address'}, t('Address of the host for this port')),
    h('input', {id: 'ssh-address', required: true, autocomplete: 'off', value: network?.['ssh-address'] ?? '127.0.0.1'}));
}

function showLogins(event) {
  const shown = document.getElementById('logins');
  shown.hidden = shown.disabled = !event.target.value;
}

/** Lines of a name and a key, as the declaration has them: each name once, with all of its keys. */
function usersOf(text) {
  const keys = new Map();
  for (const line of text.split('\n').map(one => one.trim()).filter(Boolean)) {
    const [name] = line.split(/\s/, 1);
    keys.set(name, [...keys.get(name) ?? [], line.slice(name.length).trim()]);
  }
  return [...keys].map(([name, all]) => ({name, keys: all}));
}

function fields(declared) {
  const gpu = declared?.gpu;
  return [
    !declared && [h('label', {for: 'name'}, t('Name')),
      h('input', {id: 'name', required: true, pattern: '[a-z][a-z0-9\\-]{0,15}', maxlength: 16, autocomplete: 'off', spellcheck: 'false'})],
    number('nodes', t('Number of nodes'), declared?.nodes ?? 2, 1, 64),
    number('cpus', t('CPUs of each node'), declared?.cpus ?? 1, 1, 64),
    number('memory', t('Memory of each node, MiB'), declared?.memory ?? 512, 128, 1048576),
    check('protected', t('Protected: each node has a standby'), declared?.protected ?? false),
    h('label', {for: 'image'}, t('System of each node')),
    h('select', {id: 'image', oninput: showLogins}, [['', t('small')], ['mpi', t('with ssh and MPI')]].map(([value, text]) =>
      h('option', {value, selected: (declared?.image ?? '') === value}, text))),
    logins(declared),
    h('label', {for: 'gpu'}, t('GPU')),
    h('select', {id: 'gpu'}, [['', t('none')], ['opencl', 'OpenCL'], ['cuda', 'CUDA']].map(([value, text]) =>
      h('option', {value, selected: (declared ? gpu?.backend ?? '' : 'opencl') === value}, text))),
    number('share', t('Share of the GPU, percent'), gpu?.share ?? '', 1, 100, false),
    check('outside', t('Nodes reach what the host reaches'), declared?.network?.outside ?? true),
    number('bandwidth', t('Bandwidth of each link, Mbit/s (empty: no limit)'), declared?.network?.['bandwidth-mbit'] || '', 1, 100000, false),
    number('latency', t('Latency of each link, ms'), declared?.network?.['latency-ms'] ?? 0, 0, 1000),
    check('tcg', t('Emulated (no KVM)'), declared?.accel === 'tcg'),
  ].flat(2).filter(Boolean);
}

function read(form, before) {
  const of = id => form.querySelector(`#${id}`);
  const whole = id => Number(of(id).value);
  const out = structuredClone(before ?? {});
  out.name = before?.name ?? of('name').value;
  out.nodes = whole('nodes');
  out.cpus = whole('cpus');
  out.memory = whole('memory');
  out.protected = of('protected').checked;
  if (of('gpu').value) {
    out.gpu = {...before?.gpu, backend: of('gpu').value};
    delete out.gpu.share;
    if (of('share').value) out.gpu.share = whole('share');
  } else {
    delete out.gpu;
  }
  out.network = {outside: of('outside').checked, 'latency-ms': whole('latency')};
  delete out.image;
  delete out.users;
  if (of('image').value) {
    out.image = of('image').value;
    out.users = usersOf(of('users').value);
    if (of('ssh-port').value) Object.assign(out.network, {'ssh-port': whole('ssh-port'), 'ssh-address': of('ssh-address').value.trim()});
  }
  if (of('bandwidth').value) out.network['bandwidth-mbit'] = whole('bandwidth');
  if (of('tcg').checked) out.accel = 'tcg';
  else if (out.accel === 'tcg') out.accel = 'auto';
  if (out.node) out.node = out.node.filter(one => Number(one.name.slice(4)) <= out.nodes);
  return out;
}

function planText(plan) {
  const changes = plan.is_new
    ? t('Starts {n} VMs and {s} standbys.', {n: plan.nodes, s: plan.standbys})
    : t('From {a} to {b} nodes, from {c} to {d} standbys.',
      {a: plan.nodes_before, b: plan.nodes, c: plan.standbys_before, d: plan.standbys});
  const {needs, free_afterwards: free} = plan;
  return [
    h('p', {class: plan.fits ? 'good-text' : 'problem'}, h('strong', {}, plan.fits ? t('It fits.') : t('It does not fit.')), ' ', changes),
    plan.why ? h('p', {}, said(plan.why)) : null,
    h('p', {}, t('Needs {cpus} CPUs, {memory}, {gpu} % of a GPU; free afterwards: {fcpus} CPUs, {fmemory}, {fgpu} %.', {
      cpus: needs.cpus, memory: mib(needs.memory_mib), gpu: needs.gpu_percent,
      fcpus: free.cpus, fmemory: mib(free.memory_mib), fgpu: free.gpu_percent})),
    plan.fits && store.hosts.length > 1 ? h('p', {}, t('Placement:'), ' ',
      plan.placement.map(one => t('{host}: {n} VMs, {s} standbys', {host: one.host, n: one.vms, s: one.standbys})).join('; ')) : null,
    plan.restarts.length ? h('p', {class: 'warning-text'}, t('Needs stop and start: {nodes}.', {nodes: plan.restarts.join(', ')})) : null,
  ];
}

/** `cluster`: as the store has it now, or null for a new one. */
export function openDeclaration(cluster) {
  const before = cluster?.declaration ?? null;
  const plan = h('div', {class: 'plan', 'aria-live': 'polite'});
  const content = h('div', {class: 'fields'}, fields(before), h('h3', {}, t('Plan')), plan);
  let fits = false;
  let timer = 0;
  let asked = 0;
  openDialog({
    title: before ? t('Change {name}', {name: before.name}) : t('New cluster'),
    content,
    action: before ? t('Apply') : t('Create'),
    ready: () => fits,
    act: async () => {
      const body = read(content, before);
      if (before) await ask('PUT', clusterPath(before.name), {body, revision: cluster.revision});
      else await ask('POST', '/v1/clusters', {body});
      announce(`${body.name}: ${before ? t('changed') : t('starting')}`);
      location.hash = `#/clusters/${body.name}`;
    },
    opened: checkButton => {
      const show = async () => {
        const mine = ++asked;
        fits = false;
        checkButton();
        if (![...content.querySelectorAll('input')].every(input => input.checkValidity())) {
          replace(plan);
          return;
        }
        try {
          const found = await ask('POST', '/v1/plan', {body: read(content, before)});
          if (mine !== asked) return;
          fits = found.fits;
          replace(plan, planText(found));
        } catch (refusal) {
          if (mine === asked) replace(plan, h('p', {class: 'problem'}, sentence(refusal)));
        }
        checkButton();
      };
      content.addEventListener('input', () => {
        clearTimeout(timer);
        fits = false;
        timer = setTimeout(show, planAfterMs);
      });
      show();
    },
  });
}
