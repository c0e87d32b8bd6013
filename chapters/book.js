// What a page gains with a script: search, copying, the arrow keys. Without it everything can still be read.
'use strict';
(() => {
  const root = document.currentScript.dataset.root;
  const make = (name, fields, ...children) => {
    const node = Object.assign(document.createElement(name), fields);
    node.append(...children);
    return node;
  };

  // A listing that fits needs no stop of the tab key.
  const fits = () => {
    for (const box of document.querySelectorAll('pre, .scroll')) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute('tabindex');
    }
  };
  addEventListener('resize', fits);
  fits();

  const status = make('p', { className: 'status' });
  status.setAttribute('role', 'status');
  document.body.append(status);

  for (const listing of document.querySelectorAll('.listing')) {
    const name = (listing.querySelector('.file') || document.querySelector('h1')).textContent;
    const button = make('button', { className: 'copy', type: 'button', textContent: 'copy' });
    button.setAttribute('aria-label', `copy this listing of ${name}`);
    button.addEventListener('click', async () => {
      const lines = [...listing.querySelectorAll('pre code > span')].map((line) => line.textContent);
      try {
        await navigator.clipboard.writeText(lines.join('\n') + '\n');
        status.textContent = button.textContent = 'copied';
      } catch {
        getSelection().selectAllChildren(listing.querySelector('code'));
        status.textContent = button.textContent = 'selected';
      }
      setTimeout(() => { button.textContent = 'copy'; status.textContent = ''; }, 1500);
    });
    listing.append(button);
  }

  // Search. The index is a script, since a page opened as a file may fetch nothing; it is loaded when it is first wanted.
  const input = make('input', { type: 'search', placeholder: 'Search  /', autocomplete: 'off' });
  input.setAttribute('aria-label', 'Search the book');
  const list = make('ol', { hidden: true });
  const box = make('div', { className: 'search' }, input, list);
  box.setAttribute('role', 'search');
  document.querySelector('.top').append(box);
  let book = null;
  window.tilesBook = (sections) => { book = sections.map((s) => ({ ...s, low: s.text.toLowerCase(), head: s.title.toLowerCase() })); find(); };
  input.addEventListener('focus', () => {
    if (!document.getElementById('search-index')) document.head.append(make('script', { id: 'search-index', src: root + 'search.js' }));
  });

  function find() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    list.replaceChildren();
    list.hidden = true;
    if (!words.length || !book) return;
    const found = [];
    for (const s of book) {
      let points = 0;
      for (const w of words) {
        const at = s.low.indexOf(w), code = (' ' + s.code).toLowerCase().includes(w);
        if (s.head.includes(w)) points += 8;
        else if (at >= 0) points += 3 + Math.min(3, s.low.split(w).length - 2);
        else if (code) points += 2;
        else { points = 0; break; }
      }
      if (points) found.push([points, s]);
    }
    found.sort((a, b) => b[0] - a[0]);
    for (const [, s] of found.slice(0, 20)) {
      const at = Math.max(0, s.low.indexOf(words[0]) - 40);
      const near = s.text.slice(at, at + 110);
      list.append(make('li', {}, make('a', { href: root + s.url }, s.title, make('small', { textContent: `${s.chapter}: ${at ? '…' : ''}${near}…` }))));
    }
    if (!found.length) list.append(make('li', { textContent: 'nothing found' }));
    list.hidden = false;
    status.textContent = `${Math.min(20, found.length)} places found`;
  }
  input.addEventListener('input', find);
  const close = () => { list.hidden = true; };
  list.addEventListener('click', close);
  document.addEventListener('click', (e) => { if (!box.contains(e.target)) close(); });

  addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const here = document.activeElement;
    if (box.contains(here)) {
      const stops = [input, ...list.querySelectorAll('a')], at = stops.indexOf(here);
      if (e.key === 'Escape') { close(); input.blur(); }
      if (e.key === 'ArrowDown' && stops[at + 1]) { stops[at + 1].focus(); e.preventDefault(); }
      if (e.key === 'ArrowUp' && at > 0) { stops[at - 1].focus(); e.preventDefault(); }
      if (e.key === 'Enter' && here === input && stops[1]) stops[1].click();
      return;
    }
    if (e.key === '/') { input.focus(); e.preventDefault(); }
    // In a listing that scrolls the arrows scroll.
    if (here && (here.tagName === 'PRE' || here.classList.contains('scroll'))) return;
    const way = { ArrowLeft: 'prev', ArrowRight: 'next' }[e.key];
    const link = way && document.querySelector(`link[rel="${way}"]`);
    if (link) location.href = link.href;
  });
})();
