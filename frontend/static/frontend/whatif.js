// The number beside a slider follows it while it is moved; the answer comes when it is let go (htmx).
(() => {
  'use strict';
  document.querySelector('form.whatif')?.addEventListener('input', (event) => {
    const shown = event.target.closest('label')?.querySelector('output');
    if (shown) shown.textContent = Number(event.target.value).toLocaleString('en-GB');
  });
})();
