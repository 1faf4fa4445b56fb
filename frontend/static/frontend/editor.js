// The release's text as a form. The text is the truth: the server reads its values, and writes a changed one into it; every
// other letter stays as its author wrote it. A change in the form is typed into the text, which runs it dry like any other.
(() => {
  'use strict';
  const AFTER_TYPING_MS = 300;
  const yaml = document.querySelector('[data-yaml]'), box = document.querySelector('[data-fields]');
  if (!yaml || !box) return;
  const form = box.querySelector('[data-form]'), token = document.querySelector('[name=csrfmiddlewaretoken]');
  let timer = 0, asked = 0;

  async function ask(change) {
    const number = ++asked, sent = yaml.value;
    const body = new URLSearchParams({ yaml: sent, ...change });
    try {
      const reply = await fetch(box.dataset.fields, { method: 'POST', body, headers: { 'X-CSRFToken': token.value }, redirect: 'error' });
      if (!reply.ok) throw new Error(String(reply.status));
      const fresh = await reply.json();
      if (yaml.value !== sent) { if (change.path) ask(change); return; }   // the text was typed in meanwhile, and is asked about again
      if (number !== asked) return;
      if (fresh.yaml !== sent) { yaml.value = fresh.yaml; yaml.dispatchEvent(new Event('input', { bubbles: true })); }
      show(fresh.fields);
    } catch { globalThis.denvLive?.unanswered(); return false; }
  }

  // One group for the release and one for each stage; what is in a group is named by the rest of its path.
  function split(path) {
    const parts = path.split('.'), head = parts.slice(0, parts[0] === 'stages' ? 2 : 1);
    return [head.join(' '), parts.slice(head.length).join(' ') || path];
  }
  function put(input, value) { input.value = input.dataset.written = value; }
  function field(item, name) {
    const label = document.createElement('label'), input = document.createElement('input');
    label.className = 'field'; label.textContent = name;
    put(input, item.value); input.dataset.path = item.path; input.autocomplete = 'off'; input.spellcheck = false;
    label.append(input);
    return label;
  }
  function show(fields) {
    const old = [...form.querySelectorAll('input')];
    if (old.length === fields.length && old.every((input, i) => input.dataset.path === fields[i].path)) {
      old.forEach((input, i) => { if (input !== document.activeElement) put(input, fields[i].value); });
      return;
    }
    const groups = new Map();
    for (const item of fields) {
      const [group, name] = split(item.path);
      if (!groups.has(group)) {
        const set = document.createElement('fieldset'), legend = document.createElement('legend');
        legend.textContent = group; set.className = 'filters'; set.append(legend);
        groups.set(group, set);
      }
      groups.get(group).append(field(item, name));
    }
    form.replaceChildren(...groups.values());
    blame();
    if (!fields.length) form.textContent = 'The text can not be read yet; the dry run says where.';
  }

  // Once for each value: leaving a field after Enter would otherwise write it again, over what was typed into the text since.
  const write = (input) => {
    if (!input.dataset.path || input.value === input.dataset.written) return;
    input.dataset.written = input.value;
    ask({ path: input.dataset.path, value: input.value }).then((taken) => { if (taken === false) delete input.dataset.written; });
  };
  form.addEventListener('change', (e) => { e.stopPropagation(); write(e.target); });
  form.addEventListener('input', (e) => e.stopPropagation());   // not yet the text's
  form.addEventListener('keydown', (e) => { if (e.key === 'Enter') { e.preventDefault(); write(e.target); } });
  box.addEventListener('toggle', () => { if (box.open) ask({}); });
  // ---- what the dry run says belongs to the text that it was asked about ------------------------------------------------
  const run = document.getElementById('dry-run');
  let why = '';   // the reason is in the part that each dry run brings anew
  run.addEventListener('input', (e) => { if (e.target.name === 'note') why = e.target.value; });
  function release(can) {
    const button = run.querySelector('[data-release]');
    if (!button) return;
    if (can) button.removeAttribute('aria-disabled'); else button.setAttribute('aria-disabled', 'true');
  }
  yaml.addEventListener('input', () => { run.classList.add('stale'); release(false); });
  let sent = yaml.value;
  document.addEventListener('htmx:beforeRequest', (e) => { if (e.detail.elt === yaml.form) sent = yaml.value; });
  document.addEventListener('htmx:afterSettle', (e) => {
    if (e.detail.target !== run || run.querySelector('[data-running]')) return;
    if (yaml.value !== sent) { release(false); return; }   // typed in meanwhile: the next answer is on its way
    run.classList.remove('stale'); release(true);
    const said = run.querySelector('[data-said]')?.textContent.trim().replace(/\s+/g, ' ');
    if (said) globalThis.denvLive?.announce(`Dry run: ${said}`);
    const reason = run.querySelector('input[name=note]');
    if (reason && why) reason.value = why;
    blame();
  });
  document.addEventListener('htmx:afterRequest', (e) => {
    if (e.detail.target === run && !e.detail.successful && e.detail.xhr.status) globalThis.denvLive?.failed(run, e.detail.xhr);
  });
  run.addEventListener('denv:again', () => yaml.dispatchEvent(new Event('input', { bubbles: true })));
  // A mistake is shown at its line (page.js) and at its field.
  function blame() {
    const wrong = new Map([...run.querySelectorAll('[data-of]')].map((el) => [el.dataset.of, el]));
    for (const input of form.querySelectorAll('input')) {
      const finding = wrong.get(input.dataset.path);
      if (finding) { input.setAttribute('aria-invalid', 'true'); input.setAttribute('aria-describedby', finding.id); }
      else { input.removeAttribute('aria-invalid'); input.removeAttribute('aria-describedby'); }
    }
  }

  // ---- what was written and not released is there again after a reload, another page or a new sign-in --------------------
  const KEPT_MS = 7 * 86400e3, key = `denv.draft${location.search}`, note = document.getElementById('draft');
  const keep = (value) => { try { if (value === null) localStorage.removeItem(key); else localStorage.setItem(key, JSON.stringify({ at: Date.now(), text: value })); } catch { /* storage is off or full */ } };
  function kept() {
    try {
      const draft = JSON.parse(localStorage.getItem(key));
      return draft && Date.now() - draft.at < KEPT_MS ? draft : null;
    } catch { return null; }
  }
  const begun = yaml.defaultValue, draft = kept();
  if (draft && draft.text !== begun && yaml.value === begun) {
    note.querySelector('time').textContent = new Date(draft.at).toISOString().slice(0, 16).replace('T', ' ');
    note.hidden = false;
    addEventListener('load', () => { yaml.value = draft.text; yaml.dispatchEvent(new Event('input', { bubbles: true })); });
  }
  note.querySelector('button').addEventListener('click', () => {
    note.hidden = true; yaml.value = begun; yaml.dispatchEvent(new Event('input', { bubbles: true })); yaml.focus();
  });
  yaml.addEventListener('input', () => keep(yaml.value === begun ? null : yaml.value));
  yaml.form.addEventListener('submit', (e) => {
    if (e.submitter?.value === 'release') { try { sessionStorage.setItem('denv.sent', key); } catch { /* storage is off */ } }
  });

  yaml.addEventListener('input', () => { clearTimeout(timer); if (box.open) timer = setTimeout(() => ask({}), AFTER_TYPING_MS); });
})();
