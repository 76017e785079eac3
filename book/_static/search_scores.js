// How the search orders pages: first those that have all words of the question in their title, and of these the pages that
// teach before those about one table; lists of everything come last.
const asked = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];
const folders = { "notebooks/concepts/": 60, "notebooks/zoo/": 20, "book/glossary": 40 };
const lists = ["notebooks/use/api", "book/api_", "book/bibliography", "notebooks/use/status"];
var Scorer = {
  score: ([page, title, , , score]) => {
    const own = title.split(" > ")[0].toLowerCase();
    const named = asked.length && asked.every(word => own.includes(word)) ? 200 : 0;
    const overview = page.endsWith("/overview") ? 50 : 0;
    const folder = Object.keys(folders).find(start => page.startsWith(start));
    const listed = lists.some(start => page.startsWith(start)) ? 300 : 0;
    return Math.min(score, 50) + named + overview + (folders[folder] || 0) - listed;
  },
  // the rest as Sphinx has it
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
