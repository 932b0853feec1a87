// Light or dark: the system's choice, or the one made here. A classic script in the head, so that no page appears in the wrong colours first.
'use strict';

(() => {
  const KEY = 'headwater-theme';
  const root = document.documentElement;
  const chosen = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const show = (theme) => {
    if (theme === 'light' || theme === 'dark') root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  show(chosen());

  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  const describe = () => {
    for (const button of document.querySelectorAll('[data-theme-toggle]')) {
      button.hidden = false;
      button.setAttribute('aria-pressed', String(isDark()));
    }
  };
  document.addEventListener('DOMContentLoaded', describe);
  document.addEventListener('click', (event) => {
    if (!event.target.closest?.('[data-theme-toggle]')) return;
    const next = isDark() ? 'light' : 'dark';
    show(next);
    try { localStorage.setItem(KEY, next); } catch { /* Private windows may refuse; the choice holds for this page. */ }
    describe();
    document.dispatchEvent(new CustomEvent('headwater:theme', { detail: next }));
  });
})();
