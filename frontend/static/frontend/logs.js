// A log as it is written: lines of the server's stream, the last few thousand of them. Scrolled up, it stays where it is.
(() => {
  'use strict';
  const log = document.getElementById('log');
  const state = document.getElementById('log-state');
  if (!log) return;
  const LINES_MAX = 5000;

  function add(text, css) {
    const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const line = document.createElement('span');
    if (css) line.className = css;
    line.textContent = text + '\n';
    log.append(line);
    while (log.childElementCount > LINES_MAX) log.firstElementChild.remove();
    if (below) log.scrollTop = log.scrollHeight;
  }

  const head = (said) => `unit ${said.unit} ${said.role} ${said.ordinal + 1}${said.rank ? ` rank ${said.rank}` : ''}`;
  const stream = new EventSource(log.dataset.src);
  stream.onopen = () => { log.replaceChildren(); state.textContent = 'open'; };
  stream.addEventListener('log', (e) => {
    const said = JSON.parse(e.data);
    if (said.note) add(`${head(said)}: ${said.note}`, 'warn-t');
    for (const line of said.text.replace(/\n$/, '').split('\n')) add(`${head(said)}  ${line}`);
  });
  stream.addEventListener('note', (e) => { const said = JSON.parse(e.data); add(`${head(said)}: ${said.note}`, 'warn-t'); });
  stream.addEventListener('end', () => { stream.close(); state.textContent = 'this is all that there is'; });
  stream.onerror = () => {
    state.textContent = stream.readyState === EventSource.CLOSED ? 'refused: nothing like this runs, or you may not read it' : 'the connection broke; trying again';
  };
})();
