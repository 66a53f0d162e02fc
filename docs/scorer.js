/* The order of search results. Who searches three words or more has probably typed an error text, so troubleshooting
   comes first if it has all of them. The other numbers are those of Sphinx. */
var Scorer = {
  score: ([docname, , , , score]) => {
    const words = new URLSearchParams(window.location.search).get("q")?.trim().split(/\s+/) ?? [];
    return docname === "troubleshooting" && words.length > 2 ? score + 20 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
