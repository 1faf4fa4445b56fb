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
  yaml.addEventListener('input', () => { clearTimeout(timer); if (box.open) timer = setTimeout(() => ask({}), AFTER_TYPING_MS); });
})();
