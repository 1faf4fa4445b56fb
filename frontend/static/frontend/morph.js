// A swap that changes what differs and leaves the rest: focus, text that is being typed, open <details> and dialogs stay.
// hx-swap="morph" on an element morphs its children; data-keep="id" leaves an element to its own script.
(() => {
  'use strict';
  // Attributes that belong to the person in front of the page, not to the server.
  const theirs = (el, name) => (name === 'open' && (el.nodeName === 'DETAILS' || el.nodeName === 'DIALOG'))
    || (name === 'tabindex' && el.classList.contains('tile'));

  function attributes(old, fresh) {
    for (const { name, value } of fresh.attributes) {
      if (!theirs(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!theirs(old, name) && !fresh.hasAttribute(name) && !name.startsWith('data-kept')) old.removeAttribute(name);
    }
  }

  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || '') === (b.id || '');

  function morph(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.hasAttribute('data-keep') || old.isEqualNode(fresh)) return;
    attributes(old, fresh);
    children(old, fresh);
  }

  function children(old, fresh) {
    const named = new Map([...old.children].filter((el) => el.id).map((el) => [el.id, el]));
    const wanted = new Set([...fresh.children].map((el) => el.id).filter(Boolean));
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      let match = at;
      if (next.id) {
        match = named.get(next.id) || null;
        // What stands in between and is not wanted goes, so that the match stays where it is: moving it would take its focus.
        while (match && at && at !== match && !wanted.has(at.id)) { const gone = at; at = at.nextSibling; gone.remove(); }
      }
      if (match && alike(match, next)) {
        if (match === at) at = at.nextSibling; else old.insertBefore(match, at);
        morph(match, next);
      } else if (at && !at.id && !next.id && at.nodeType === next.nodeType && at.nodeType !== Node.ELEMENT_NODE) {
        morph(at, next); at = at.nextSibling;
      } else {
        const made = document.importNode(next, true);
        old.insertBefore(made, at);
        if (at && !at.id && !next.id && at.nodeType === next.nodeType) { const gone = at; at = at.nextSibling; gone.remove(); }
        globalThis.htmx.process(made);
      }
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  }

  globalThis.htmx.defineExtension('morph', {
    isInlineSwap: (style) => style === 'morph',
    handleSwap(style, target, fragment) {
      if (style !== 'morph') return false;
      children(target, fragment);
      target.dispatchEvent(new CustomEvent('denv:swapped', { bubbles: true }));
      return [];   // nothing is new as a whole: htmx would focus what has autofocus in it
    },
  });
})();
