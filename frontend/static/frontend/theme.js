// Before the first paint: the theme that this browser asked for, if any. Loaded without `defer` so that nothing flashes.
(() => {
  'use strict';
  let theme = '';
  try { theme = localStorage.getItem('denv.theme') || ''; } catch { /* storage is off: follow the system */ }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
})();
