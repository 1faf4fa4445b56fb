// Live figures: one event stream a tab, and a look at the figures every 2 s while somebody can see them.
// Paused by the Live button or while the tab is hidden; when the server does not answer, the page says since when and goes on trying.
(() => {
  'use strict';
  const EVERY_MS = 2000, AFTER_EVENT_MS = 150, LOST_AFTER_MS = 4000, LISTEN_AGAIN_MS = [2000, 60000], SAY_MS = 10000, LOST_TICKS_MAX = 8;
  const main = document.querySelector('[data-living]');
  const every = Number(main?.dataset.every || 1);   // a heavy page looks at its clock's every so many-th stroke, and at each event as any other
  const note = document.getElementById('offline');
  const all = (query) => [...document.querySelectorAll(query)];
  let paused = false, stream = null, timer = 0, soon = 0, listenedAt = 0, answeredAt = Date.now(), answeredClock = '', lost = false, refused = 0, missed = 0, ticks = 0;

  const wanted = () => !paused && !document.hidden;
  const refresh = () => { if (wanted()) document.body.dispatchEvent(new CustomEvent('denv:refresh')); };

  // ---- what the reader sees of it --------------------------------------------------------------------------------------
  function showPaused() {
    for (const b of all('[data-live]')) {
      b.setAttribute('aria-pressed', String(paused));
      const [clock, seconds] = [globalThis.denvClock().slice(0, 5), globalThis.denvClock().slice(5)];
      const words = element('span', paused ? 'Paused' : 'Live');
      if (paused) words.append(element('span', ' at', 'wide'), ` ${clock}`, element('span', seconds, 'wide'));
      b.replaceChildren(words);
    }
  }
  function showLost(is) {
    if (is === lost || !note) return;
    lost = is;
    note.hidden = !is;
    note.querySelector('span').textContent = is ? `No answer from denv since ${answeredClock}. What you see is of then; it goes on trying. What runs goes on serving.` : '';
    main?.classList.toggle('stale', is);
    announce(is ? 'Live updates stopped: no answer from denv.' : 'Live updates are back.');
  }
  function announce(text) {
    const el = document.getElementById('announce');
    if (el) el.textContent = text;
  }
  function answered() { answeredAt = Date.now(); answeredClock = globalThis.denvClock(); showLost(false); }
  function unanswered() { if (Date.now() - answeredAt > LOST_AFTER_MS + (every - 1) * EVERY_MS) showLost(true); }

  // ---- the journal, as it grows ------------------------------------------------------------------------------------------
  function onEvent(e) {
    soon ||= setTimeout(() => { soon = 0; document.body.dispatchEvent(new CustomEvent('denv:event')); refresh(); }, AFTER_EVENT_MS);
    try {
      const event = JSON.parse(e.data);
      if (event.sentence) tell([event.stage || event.fleet, event.sentence].filter(Boolean).join(': '), event.level !== 'info');
    } catch { /* not an event of the journal: only a reason to look again */ }
  }
  // What is bad is said at once; of the rest the last in ten seconds, and how many there were: a busy evening is no chatter.
  let told = 0, toTell = [];
  function tell(text, now) {
    toTell.push(text);
    if (now) { clearTimeout(told); say(); } else told ||= setTimeout(say, SAY_MS);
  }
  function say() {
    told = 0;
    announce(toTell.length > 1 ? `${toTell.length} events, the last: ${toTell.at(-1)}` : toTell[0]);
    toTell = [];
  }
  function listen() {
    if (stream?.readyState === EventSource.CLOSED) { hush(); refused += 1; }   // refused for good: by itself it would not come back
    const wait = refused ? Math.min(LISTEN_AGAIN_MS[1], LISTEN_AGAIN_MS[0] * 2 ** (refused - 1)) * (0.75 + Math.random() / 2) : 0;
    if (stream || !wanted() || Date.now() - listenedAt < wait) return;
    listenedAt = Date.now();
    stream = new EventSource('/api/v1/stream');
    stream.addEventListener('journal', onEvent);
    stream.onopen = () => { refused = 0; answered(); };
  }
  function hush() { stream?.close(); stream = null; }
  // A denv that does not answer is asked ever more seldom, so that all open pages together do not keep it down.
  function tick() {
    missed = lost ? missed + 1 : 0;
    const often = Math.min(LOST_TICKS_MAX, 1 << Math.floor(missed / 8));
    if (missed % often) return;
    listen();
    if (lost || ++ticks % every === 0) refresh();
    if (main) unanswered();
  }

  function settle(first) {
    clearInterval(timer);
    if (wanted()) { listenedAt = refused = 0; listen(); if (!first) refresh(); timer = setInterval(tick, EVERY_MS); } else hush();
  }

  document.addEventListener('click', (e) => {
    if (!e.target.closest('[data-live]')) return;
    paused = !paused; showPaused();
    document.dispatchEvent(new CustomEvent('denv:paused', { detail: paused }));
    answeredAt = Date.now();
    settle();
  });
  document.addEventListener('visibilitychange', () => { answeredAt = Date.now(); settle(); });
  // An answer that is an error is an answer: denv is there, and one part of the page is not. No answer, or that of a proxy
  // in front of a denv that is away, is the line above.
  const AWAY = new Set([0, 502, 503, 504]);
  document.addEventListener('htmx:afterRequest', (e) => { if (e.detail.successful || !AWAY.has(e.detail.xhr.status)) answered(); else unanswered(); });

  // ---- a part that could not be renewed: what it showed stays, grey, under a note that says so ------------------------------
  const REASONS = {
    403: 'You may not see this any more: your roles have changed.',
    404: 'This is not there any more, or not yours to see.',
  };
  function element(tag, text, css) { const el = document.createElement(tag); el.textContent = text; if (css) el.className = css; return el; }
  function failed(part, xhr) {
    const known = REASONS[xhr.status], id = xhr.getResponseHeader('X-Request-Id');
    let box = part.querySelector(':scope > [data-failed]');
    if (box?.dataset.failed === String(xhr.status)) { part.classList.add('stale'); box.querySelector('code').textContent = id || ''; return; }
    box?.remove();
    box = element('div', '', 'note failed'); box.dataset.failed = xhr.status; box.dataset.s = known ? 'warn' : 'bad'; box.setAttribute('role', 'alert');
    const icon = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
    icon.setAttribute('class', 'i'); icon.setAttribute('aria-hidden', 'true'); use.setAttribute('href', known ? '#i-lock' : '#i-bad'); icon.append(use);
    const said = element('p', known || `This could not be renewed: denv answered with error ${xhr.status}.`);
    said.append(element('span', ` What stands below is of ${answeredClock} or before. What runs goes on serving.`, 'dim'));
    const number = element('span', 'request ', 'xs dimmer'); number.append(element('code', id || ''));
    const again = element('button', 'Try again', 'btn small'); again.type = 'button'; again.dataset.again = '';
    const body = document.createElement('div'); body.append(said, number);
    box.append(icon, body, again);
    part.prepend(box); part.classList.add('stale'); part.removeAttribute('aria-busy');
  }
  function again(part) {
    if (!part.hasAttribute('hx-get')) { part.dispatchEvent(new CustomEvent('denv:again', { bubbles: true })); return; }
    globalThis.htmx.ajax('GET', part.getAttribute('hx-get'), { source: part, target: part, swap: part.getAttribute('hx-swap') });
  }
  const livingPart = (el) => (el?.matches('[hx-get][hx-trigger]:not([data-quiet])') ? el : null);
  document.addEventListener('htmx:afterRequest', (e) => {
    const part = livingPart(e.detail.elt), { xhr } = e.detail;
    if (!part || part !== e.detail.target) return;
    if (e.detail.successful) {
      part.querySelector(':scope > [data-failed]')?.remove();
      part.classList.remove('stale'); part.removeAttribute('aria-busy');
    } else if (!AWAY.has(xhr.status)) failed(part, xhr);
  });
  document.addEventListener('click', (e) => { const button = e.target.closest('[data-again]'); if (button) again(button.closest('.failed').parentElement); });
  addEventListener('pagehide', hush);
  addEventListener('pageshow', (e) => { if (e.persisted) settle(); });
  answeredClock = globalThis.denvClock();
  globalThis.denvLive = { wanted, answered, unanswered, failed, announce, paused: () => paused };
  if (document.querySelector('[data-live]')) settle(true);   // the page is as fresh as it can be
})();
