// Live figures: one event stream a tab, and a look at the figures every 2 s while somebody can see them.
// Paused by the Live button or while the tab is hidden; when the server does not answer, the page says since when and goes on trying.
(() => {
  'use strict';
  const EVERY_MS = 2000, AFTER_EVENT_MS = 150, LOST_AFTER_MS = 5000, LISTEN_AGAIN_MS = 10000;
  const main = document.querySelector('[data-living]');
  const note = document.getElementById('offline');
  const all = (query) => [...document.querySelectorAll(query)];
  let paused = false, stream = null, timer = 0, soon = 0, listenedAt = 0, answeredAt = Date.now(), answeredClock = '', lost = false;

  const wanted = () => !paused && !document.hidden;
  const refresh = () => { if (wanted()) document.body.dispatchEvent(new CustomEvent('denv:refresh')); };

  // ---- what the reader sees of it --------------------------------------------------------------------------------------
  function showPaused() {
    for (const b of all('[data-live]')) {
      b.setAttribute('aria-pressed', String(paused));
      b.textContent = paused ? `Paused at ${globalThis.denvClock()}` : 'Live';
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
  function unanswered() { if (Date.now() - answeredAt > LOST_AFTER_MS) showLost(true); }

  // ---- the journal, as it grows ------------------------------------------------------------------------------------------
  function onEvent(e) {
    clearTimeout(soon);
    soon = setTimeout(() => { document.body.dispatchEvent(new CustomEvent('denv:event')); refresh(); }, AFTER_EVENT_MS);
    try {
      const event = JSON.parse(e.data);
      if (event.sentence) announce([event.stage || event.fleet, event.sentence].filter(Boolean).join(': '));
    } catch { /* not an event of the journal: only a reason to look again */ }
  }
  function listen() {
    if (stream?.readyState === EventSource.CLOSED) hush();   // refused for good: by itself it would not come back
    if (stream || !wanted() || Date.now() - listenedAt < LISTEN_AGAIN_MS) return;
    listenedAt = Date.now();
    stream = new EventSource('/api/v1/stream');
    stream.addEventListener('journal', onEvent);
    stream.onopen = answered;
  }
  function hush() { stream?.close(); stream = null; }
  function tick() { listen(); refresh(); if (main) unanswered(); }

  function settle(first) {
    clearInterval(timer);
    if (wanted()) { listenedAt = 0; listen(); if (!first) refresh(); timer = setInterval(tick, EVERY_MS); } else hush();
  }

  document.addEventListener('click', (e) => {
    if (!e.target.closest('[data-live]')) return;
    paused = !paused; showPaused();
    document.dispatchEvent(new CustomEvent('denv:paused', { detail: paused }));
    answeredAt = Date.now();
    settle();
  });
  document.addEventListener('visibilitychange', () => { answeredAt = Date.now(); settle(); });
  document.addEventListener('htmx:afterRequest', (e) => { if (e.detail.successful) answered(); else unanswered(); });
  addEventListener('pagehide', hush);
  addEventListener('pageshow', (e) => { if (e.persisted) settle(); });
  answeredClock = globalThis.denvClock();
  globalThis.denvLive = { wanted, answered, unanswered, paused: () => paused };
  if (document.querySelector('[data-live]')) settle(true);   // the page is as fresh as it can be
})();
