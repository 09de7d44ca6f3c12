// SPDX-License-Identifier: GPL-2.0-or-later
//
// A browser for tests: Debian's Chromium by Playwright. Each line of standard input is a step as JSON, {"step": "open", …}; each line
// of the output says what came of it, {"ok": true, …} or {"error": "…"}. browser.py is its other end. Steps wait for what they look
// for (`seconds`), never for a time.
//
// $KAGE_NODE_MODULES: the folder that `modules` prints.
import {createRequire} from 'node:module';
import {createInterface} from 'node:readline';
import {readFileSync} from 'node:fs';

const require = createRequire(`${process.env.KAGE_NODE_MODULES}/`);
const {chromium} = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const timeoutMs = Number(process.env.KAGE_BROWSER_SECONDS ?? 120) * 1000;
const browser = await chromium.launch({executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage']});
const pages = new Map(); // by name: people with a browser each
const problems = []; // what a page's console complained of

async function pageOf(name, options) {
  if (!pages.has(name)) {
    const context = await browser.newContext({ignoreHTTPSErrors: true, viewport: {width: 1100, height: 800}, ...options});
    const page = await context.newPage();
    page.setDefaultTimeout(timeoutMs);
    page.on('pageerror', error => problems.push(`${error}`));
    page.on('console', message => {
      // A refused request is a line of the console's, too; the page says what it was.
      if (message.type() === 'error' && !/Failed to load resource|WebSocket connection/.test(message.text())) problems.push(message.text());
    });
    pages.set(name, page);
  }
  return pages.get(name);
}

const steps = {
  async open({page, url, options}) {
    const at = await pageOf(page, options);
    const before = performance.now();
    await at.goto(url);
    const ready = performance.now() - before;
    return {ms: ready};
  },
  async click({page, selector}) {
    await (await pageOf(page)).locator(selector).first().click();
  },
  async fill({page, selector, value}) {
    await (await pageOf(page)).locator(selector).fill(value);
  },
  async choose({page, selector, value}) {
    await (await pageOf(page)).locator(selector).selectOption(value);
  },
  async check({page, selector, on = true}) {
    await (await pageOf(page)).locator(selector).setChecked(on);
  },
  async press({page, keys}) {
    for (const key of [keys].flat()) await (await pageOf(page)).keyboard.press(key);
  },
  async type({page, text}) {
    await (await pageOf(page)).keyboard.type(text);
  },
  /** Until there is one that is visible (or none, or one with this text). */
  async wait({page, selector, state = 'visible', seconds}) {
    await (await pageOf(page)).locator(selector).first().waitFor({state, timeout: seconds ? seconds * 1000 : timeoutMs});
  },
  async text({page, selector}) {
    return {text: await (await pageOf(page)).locator(selector).first().innerText()};
  },
  async attribute({page, selector, name}) {
    return {value: await (await pageOf(page)).locator(selector).first().getAttribute(name)};
  },
  async count({page, selector}) {
    return {count: await (await pageOf(page)).locator(selector).count()};
  },
  async focused({page}) {
    return {text: await (await pageOf(page)).evaluate(() => `${document.activeElement?.tagName} ${document.activeElement?.textContent?.trim().slice(0, 40)}`)};
  },
  async evaluate({page, script}) {
    return {value: await (await pageOf(page)).evaluate(script)};
  },
  async until({page, script}) {
    await (await pageOf(page)).waitForFunction(script, undefined, {polling: 20});
    return {};
  },
  async scheme({page, dark}) {
    await (await pageOf(page)).emulateMedia({colorScheme: dark ? 'dark' : 'light'});
  },
  async size({page, width, height}) {
    await (await pageOf(page)).setViewportSize({width, height});
  },
  async shot({page, path}) {
    await (await pageOf(page)).screenshot({path});
  },
  /** What axe finds that is serious or critical. */
  async axe({page}) {
    const at = await pageOf(page);
    await at.evaluate(axe);
    const found = await at.evaluate(() => window.axe.run(document, {resultTypes: ['violations']}));
    return {serious: found.violations.filter(one => ['serious', 'critical'].includes(one.impact))
      .map(one => `${one.id}: ${one.nodes.map(node => node.target.join(' ')).slice(0, 3).join('; ')}`)};
  },
  async cookies({page}) {
    return {cookies: await (await pageOf(page)).context().cookies()};
  },
  async reload({page}) {
    await (await pageOf(page)).reload();
  },
  async back({page}) {
    await (await pageOf(page)).goBack();
  },
  async problems() {
    return {problems: problems.splice(0)};
  },
};

console.log(JSON.stringify({ok: true, version: browser.version()}));
for await (const line of createInterface({input: process.stdin})) {
  let said;
  try {
    const {step, ...words} = JSON.parse(line);
    said = {ok: true, ...await steps[step](words)};
  } catch (error) {
    said = {error: String(error?.message ?? error)};
  }
  console.log(JSON.stringify(said));
}
await browser.close();
