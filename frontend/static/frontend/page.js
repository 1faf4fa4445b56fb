// What every page does by itself: theme, clock, dialogs, the way to a stage, copying. No inline handlers anywhere.
(() => {
  'use strict';
  const root = document.documentElement;
  const all = (query, el = document) => [...el.querySelectorAll(query)];

  // ---- theme: as the system, dark, light; kept in this browser ------------------------------------------------------
  function showTheme() {
    for (const b of all('[data-theme-cycle]')) b.setAttribute('aria-label', `Colour theme: ${root.dataset.theme || 'as the system'}`);
  }
  function cycleTheme() {
    const next = { undefined: 'dark', dark: 'light', light: '' }[root.dataset.theme];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    try { if (next) localStorage.setItem('denv.theme', next); else localStorage.removeItem('denv.theme'); } catch { /* storage is off */ }
    showTheme();
    document.dispatchEvent(new CustomEvent('denv:theme'));
  }

  // ---- clock: the server's time, carried on by this machine ------------------------------------------------------------
  const clock = document.getElementById('clock');
  const ahead = clock ? Date.parse(clock.dateTime) - Date.now() : 0;
  const now = () => new Date(Date.now() + ahead).toISOString();
  if (clock) setInterval(() => { clock.dateTime = now(); clock.textContent = now().slice(11, 19); }, 1000);
  globalThis.denvClock = () => now().slice(11, 19);

  // ---- clicks, wherever a swap has put the element ----------------------------------------------------------------------
  document.addEventListener('click', (e) => {
    const el = e.target.closest('[data-theme-cycle], [data-open], [data-close], [data-copy], [data-line], [aria-disabled="true"]');
    if (!el) return;
    if (el.matches('[aria-disabled="true"]')) { e.preventDefault(); return; }
    if (el.matches('[data-theme-cycle]')) cycleTheme();
    if (el.matches('[data-open]')) {
      const dialog = document.getElementById(el.dataset.open);
      if (dialog) { e.preventDefault(); dialog.showModal(); }
    }
    if (el.matches('[data-close]')) { e.preventDefault(); el.closest('dialog')?.close(); }
    if (el.matches('[data-copy]')) {
      navigator.clipboard?.writeText(document.getElementById(el.dataset.copy).textContent);
      el.textContent = 'Copied';
    }
    if (el.matches('[data-line]')) { e.preventDefault(); toLine(Number(el.dataset.line)); }
  });

  // ---- the editor: line numbers, and the way to the line of a finding ------------------------------------------------------
  const yaml = document.querySelector('[data-yaml]');
  function toLine(number) {
    if (!yaml) return;
    const lines = yaml.value.split('\n'), n = Math.min(Math.max(number, 1), lines.length) - 1;
    const start = lines.slice(0, n).join('\n').length + (n ? 1 : 0);
    yaml.focus(); yaml.setSelectionRange(start, start + lines[n].length);
  }
  function number() {
    const marks = new Map(all('[data-line]').map((el) => [Number(el.dataset.line), el.dataset.mark || 'bad']));
    const count = yaml.value.split('\n').length;
    const list = document.querySelector('[data-numbers]'), shown = `${count} ${[...marks].join()}`;
    if (list.dataset.shown === shown) return;   // a file of thousands of lines is not numbered anew at each letter
    list.dataset.shown = shown;
    list.replaceChildren(...Array.from({ length: count }, (_, i) => {
      const li = document.createElement('li');
      li.textContent = String(i + 1);
      if (marks.has(i + 1)) li.dataset.s = marks.get(i + 1);
      return li;
    }));
    yaml.rows = Math.max(12, count + 1);
    yaml.setAttribute('aria-invalid', String(marks.size > 0));
  }
  try {   // what was released is no draft any more; a page without an editor comes after it
    const sent = sessionStorage.getItem('denv.sent');
    if (sent && !yaml) localStorage.removeItem(sent);
    sessionStorage.removeItem('denv.sent');
  } catch { /* storage is off */ }
  if (yaml) {
    yaml.addEventListener('input', number);
    document.addEventListener('htmx:afterSettle', number);
    number();
  }

  // ---- the way to a stage: "/" focuses the box, Enter goes there ------------------------------------------------------------
  document.addEventListener('keydown', (e) => {
    const box = document.getElementById('jump');
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input, textarea, select, dialog')) return;
    e.preventDefault();
    if (box) box.focus(); else location.assign(`${document.querySelector('a.brand').href}#jump`);
  });
  if (location.hash === '#jump') document.getElementById('jump')?.focus();
  document.addEventListener('submit', (e) => {
    const form = e.target.closest('[data-jump]');
    if (!form) return;
    e.preventDefault();
    const option = all('option', form).find((o) => o.value === form.elements.stage.value.trim());
    if (option) location.assign(option.dataset.href);
  });

  // ---- the dense map of a fleet: one tab stop, arrow keys move, the domain is said below ---------------------------------
  function toTile(tile) {
    for (const other of all('.tile', tile.parentElement)) other.tabIndex = -1;
    tile.tabIndex = 0; tile.focus();
    tile.parentElement.parentElement.querySelector('[data-tile-info]').textContent = tile.getAttribute('aria-label');
  }
  document.addEventListener('click', (e) => { const tile = e.target.closest('.tile'); if (tile) toTile(tile); });
  document.addEventListener('keydown', (e) => {
    const tile = e.target.closest('.tile');
    if (!tile) return;
    const row = Math.max(1, Math.floor(tile.parentElement.clientWidth / 23));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[e.key];
    if (!step) return;
    e.preventDefault();
    const tiles = all('.tile', tile.parentElement);
    toTile(tiles[Math.min(tiles.length - 1, Math.max(0, tiles.indexOf(tile) + step))]);
  });
  // ---- the tab: how many things need a person, and how what is looked at stands -----------------------------------------
  const named = document.title, sign = document.querySelector('link[rel=icon]'), plain = sign?.getAttribute('href');
  function title() {
    const count = document.querySelector('#attention [data-count]')?.dataset.count, said = document.querySelector('[data-title]')?.dataset.title;
    const text = `${count ? `(${count}) ` : ''}${said ? `${said} · denv` : named}`;
    if (document.title !== text) document.title = text;
    const wanted = count && sign?.dataset.needs ? sign.dataset.needs : plain;
    if (sign && sign.getAttribute('href') !== wanted) sign.setAttribute('href', wanted);
  }
  document.addEventListener('htmx:afterSettle', title);
  document.addEventListener('denv:swapped', title);
  title();
  showTheme();
})();
