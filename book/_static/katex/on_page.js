// Sets the formulas of a page. Sphinx loads this on pages that have some, as elements of the class "math" with TeX between
// \( and \) or \[ and \]. `window.mathematics` is a promise: that all are set.
(() => {
  const beside = name => new URL(name, document.currentScript.src).href;
  const [script, styles] = [beside("katex.min.js"), beside("katex.min.css")];
  const loaded = element => new Promise((done, failed) => {
    Object.assign(element, { onload: done, onerror: failed });
    document.head.append(element);
  });
  const ready = new Promise(done => document.readyState === "loading"
    ? document.addEventListener("DOMContentLoaded", done) : done());
  const set = element => {
    const tex = element.textContent.trim();
    katex.render(tex.slice(2, -2), element, { displayMode: tex.startsWith("\\["), throwOnError: false });
  };
  const scrolled = () => document.querySelectorAll(".katex-display").forEach(display => {     // by arrow keys too
    if (display.scrollWidth > display.clientWidth) display.tabIndex = 0;
  });
  window.mathematics = Promise.all([
    ready,
    loaded(Object.assign(document.createElement("link"), { rel: "stylesheet", href: styles })),
    loaded(Object.assign(document.createElement("script"), { src: script })),
  ]).then(() => document.querySelectorAll(".math").forEach(set)).then(() => document.fonts.ready).then(scrolled);
})();
