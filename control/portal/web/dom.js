// SPDX-License-Identifier: GPL-2.0-or-later
// Elements from data. Text is only ever text: nothing here or elsewhere parses markup from the daemon.

const svgTags = new Set(['svg', 'g', 'rect', 'circle', 'path', 'line', 'text', 'title', 'polyline']);

/** h('button', {class: 'main', onclick: f, disabled: true}, 'text', child, [children], null) */
export function h(tag, properties = {}, ...children) {
  const made = svgTags.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return made;
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
}

/**
 * A list whose items keep their elements while their values are the same ones: `make` is called for what is new or has changed.
 * Returns update(items), items being [key, value].
 */
export function keyedList(parent, make) {
  const shown = new Map();
  return items => {
    let at = parent.firstElementChild;
    const wanted = new Set();
    for (const [key, value] of items) {
      wanted.add(key);
      let entry = shown.get(key);
      if (!entry || entry.value !== value) {
        const element = make(key, value);
        if (entry) {
          if (entry.element === at) at = element;
          entry.element.replaceWith(element);
        }
        entry = {value, element};
        shown.set(key, entry);
      }
      if (entry.element === at) at = at.nextElementSibling;
      else parent.insertBefore(entry.element, at);
    }
    for (const [key, entry] of shown) {
      if (!wanted.has(key)) {
        entry.element.remove();
        shown.delete(key);
      }
    }
  };
}

/** Says something to whoever can't see that it has happened, and shows it for a moment. */
export function announce(text) {
  const said = document.getElementById('said');
  said.textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => { said.textContent = ''; }, 6000);
}
