// Charts of the stage page. The server sends plain Plotly figures whose colours are names of tokens (`@base`); they are
// resolved here for the theme in force, so that a change of theme is one Plotly.react and no request.
(() => {
  'use strict';
  const holder = document.querySelector('[data-charts]');
  if (!holder) return;
  const inline = holder.dataset.figures;  // the id of figures that are in the page itself
  const zooms = !inline && !matchMedia('(pointer: coarse)').matches;  // a finger that moves over a chart scrolls the page
  let charts = [], busy = false, askedAt = 0, turn = 0;

  // ---- colours ------------------------------------------------------------------------------------------------------
  let cache = new Map();
  const probe = document.createElement('i');
  probe.hidden = true; document.body.append(probe);
  function token(name) {
    if (!cache.has(name)) { probe.style.color = `var(--${name})`; cache.set(name, getComputedStyle(probe).color); }
    return cache.get(name);
  }
  function resolve(value) {
    if (typeof value === 'string') return value.startsWith('@') ? token(value.slice(1)) : value;
    if (Array.isArray(value)) return typeof value[0] === 'object' || (typeof value[0] === 'string' && value[0].startsWith('@')) ? value.map(resolve) : value;
    if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v)]));
    return value;
  }

  // ---- one chart: its sentence, key, plot and table ------------------------------------------------------------------
  function words(box, chart) {
    const [strong, rest] = box.querySelector('.say').children;
    if (strong.textContent !== chart.say.strong) strong.textContent = chart.say.strong;
    if (rest.textContent !== chart.say.rest) rest.textContent = chart.say.rest;
    if (chart.say.tone) strong.dataset.s = chart.say.tone; else delete strong.dataset.s;
    const key = box.querySelector('.key');
    const classes = { base: 'rel', canary: 'rel c', note: '' };
    key.replaceChildren(...chart.key.map((k) => {
      const el = document.createElement(k.kind === 'note' ? 'i' : 'span');
      el.textContent = k.text; el.className = classes[k.kind] ?? `sw ${k.kind}`;
      return el;
    }));
  }
  const number = (v) => (v === null || v === undefined ? 'no data' : v.toLocaleString('en-GB'));
  function table(box, chart) {
    const details = box.querySelector('details'), place = box.querySelector('[data-table]');
    if (!details.open || !chart.figure.data) return;
    const { data, unit } = chart.figure;
    const make = (tag, text, cls) => { const el = document.createElement(tag); el.textContent = text; if (cls) el.className = cls; return el; };
    const head = document.createElement('tr');
    [chart.figure.across ?? 'UTC', ...data.map((s) => (unit ? `${s.name}, ${unit}` : s.name))].forEach((text, i) => { const th = make('th', text, i ? 'num' : ''); th.scope = 'col'; head.append(th); });
    const rows = (chart.figure.x ?? data[0].x).map((x, i) => {
      const tr = document.createElement('tr'), th = make('th', typeof x === 'string' ? x.slice(11, 19) : number(x));
      th.scope = 'row'; tr.append(th, ...data.map((s) => make('td', number(s.y[i]), 'num')));
      return tr;
    }).reverse();
    const t = document.createElement('table'), thead = document.createElement('thead'), tbody = document.createElement('tbody');
    t.className = 'tight'; thead.append(head); tbody.append(...rows); t.append(thead, tbody);
    place.replaceChildren(t);
  }
  function draw(chart) {
    const box = document.getElementById(`chart-${chart.id}`);
    if (!box) return;
    words(box, chart); table(box, chart);
    const plot = box.querySelector('.plot');
    if (!chart.figure.data) {
      if (plot.dataset.drawn) { globalThis.Plotly.purge(plot); delete plot.dataset.drawn; delete plot.dataset.zooms; }
      plot.dataset.empty = ''; plot.textContent = chart.empty;
      return;
    }
    if (!globalThis.Plotly) return;
    if ('empty' in plot.dataset) { delete plot.dataset.empty; plot.replaceChildren(); }
    plot.dataset.drawn = '1';
    const { data, layout, x } = resolve(chart.figure);
    if (x) for (const line of data) line.x = x;
    layout.font.family = getComputedStyle(document.body).fontFamily;
    if (zooms) { layout.dragmode = 'zoom'; layout.xaxis.fixedrange = false; }
    globalThis.Plotly.react(plot, data, layout, { displayModeBar: false, responsive: true, doubleClick: false });
    if (zooms && !plot.dataset.zooms) {
      plot.dataset.zooms = '1';
      plot.on('plotly_relayout', zoomed);
      plot.on('plotly_doubleclick', () => go(before || range.links.wider));
    }
  }
  function drawAll() { for (const chart of charts) draw(chart); }
  function showMarks(marks) {
    document.getElementById('sg-marks')?.replaceChildren(...marks.map((mark) => {
      const li = document.createElement('li'), letter = document.createElement('b');
      letter.textContent = mark.letter;
      li.append(letter, `${mark.at} ${mark.text.length > 70 ? `${mark.text.slice(0, 69)}…` : mark.text}`);
      return li;
    }));
  }

  // ---- the range of all charts: kept in the address, so that a link to it shows the same picture ---------------------------
  const [path, asked] = (holder.dataset.charts || '').split('?');
  let query = asked, every = Number(holder.dataset.every), range = { links: {} }, before = '';
  const address = (text) => { if (location.search !== `?${text}`) history.replaceState(history.state, '', `?${text}${location.hash}`); };
  function go(next) {
    if (!next || next === query) return;
    before = '';
    query = next;
    history.pushState(null, '', `?${next}${location.hash}`);   // the way back to what was seen is the browser's own
    refresh(true);
  }
  if (!inline) addEventListener('popstate', () => {
    const was = location.search.slice(1) || asked;
    if (was === query) return;
    before = ''; query = was;
    refresh(true);
  });
  function zoomed(change) {
    const from = change['xaxis.range[0]'], to = change['xaxis.range[1]'];
    if (from === undefined || to === undefined) return;   // only its size changed
    const at = (text, round) => new Date(round(Date.parse(`${text.replace(' ', 'T')}Z`) / 1000) * 1000).toISOString().replace('.000Z', 'Z');
    const was = query;
    go(`from=${at(from, Math.floor)}&to=${at(to, Math.ceil)}`);
    before = was;
  }
  function showRange(fresh) {
    range = fresh; every = fresh.every_ms;
    query = fresh.query;   // should what was asked for not be there to be shown, it is what is shown instead
    address(every && globalThis.denvLive?.paused() ? fresh.pin : query);
    const bar = document.getElementById('sg-bar'), text = document.getElementById('sg-range');
    for (const a of bar.querySelectorAll('[data-range]')) {
      if (a.dataset.range === query) a.setAttribute('aria-current', 'true'); else a.removeAttribute('aria-current');
    }
    for (const a of bar.querySelectorAll('[data-way]')) {
      const way = fresh.links[a.dataset.way];
      a.href = `?${way}`;
      if (way === query) a.setAttribute('aria-disabled', 'true'); else a.removeAttribute('aria-disabled');
    }
    if (text.textContent !== fresh.text) text.textContent = fresh.text;
  }
  document.getElementById('sg-bar')?.addEventListener('click', (e) => {
    const a = e.target.closest('a');
    if (!a || e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    if (a.getAttribute('aria-disabled') !== 'true') go(a.getAttribute('href').slice(1));
  });
  // Paused, the picture stands still, and so does its address.
  document.addEventListener('denv:paused', (e) => { if (every && range.pin) address(e.detail ? range.pin : query); });

  // ---- again, while somebody looks --------------------------------------------------------------------------------------
  async function figures() {
    if (inline) return JSON.parse(document.getElementById(inline).textContent);
    const reply = await fetch(`${path}?${query}`, { redirect: 'error' });
    if (!reply.ok) throw new Error(String(reply.status));
    return reply.json();
  }
  async function refresh(first) {
    const now = Date.now();
    if (first !== true && (busy || inline || !every || now - askedAt < every - 200)) return;
    const mine = ++turn;
    busy = true; askedAt = now;
    try {
      const fresh = await figures();
      if (mine !== turn) return;   // another range was asked for meanwhile
      charts = fresh.charts;
      if (fresh.range && (first === true || globalThis.denvLive?.wanted())) showRange(fresh.range);
      if (first === true || globalThis.denvLive?.wanted()) { drawAll(); showMarks(fresh.marks); }
    } catch { if (mine === turn) globalThis.denvLive?.unanswered(); } finally { if (mine === turn) busy = false; }
  }

  document.body.addEventListener('denv:refresh', refresh);
  if (inline) document.body.addEventListener('htmx:afterSettle', (event) => { if (event.target.querySelector?.(`#${inline}`)) refresh(true); });
  document.addEventListener('denv:theme', () => { cache = new Map(); drawAll(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { cache = new Map(); drawAll(); });
  for (const box of document.querySelectorAll('[data-chart]')) {
    const show = () => { const chart = charts.find((c) => c.id === box.dataset.chart); if (chart) table(box, chart); };
    box.querySelector('details').addEventListener('toggle', show);
  }
  refresh(true);
})();
