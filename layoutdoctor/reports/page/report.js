/* The HTML report: copy buttons, sorted and filtered tables, links to folded parts. Strings of the record are set as text, never as HTML. */
(function () {
  "use strict";
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  function make(tag, text, className) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  }

  // ---------------------------------------------------------------- copy
  async function copyText(pre) {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(pre);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  }
  all("[data-copy]").forEach((button) => {
    button.hidden = false;
    const label = button.firstChild, text = label.data;
    button.addEventListener("click", async () => {
      label.data = (await copyText(button.previousElementSibling)) ? "Copied" : "Selected";
      setTimeout(() => { label.data = text; }, 1500);
    });
  });

  // ---------------------------------------------------------------- tables wider than the page
  const markWide = () => all(".scroll").forEach((box) => box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1));
  markWide();
  window.addEventListener("resize", markWide);
  all("details").forEach((details) => details.addEventListener("toggle", markWide));

  // ---------------------------------------------------------------- tables
  const SCALES = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, TiB: 1099511627776 };
  const MANY_ROWS = 20;
  const collator = new Intl.Collator("en", { numeric: true });
  const status = make("p", "", "out-of-sight");
  status.setAttribute("role", "status");
  document.body.append(status);

  function sortKey(text) {
    const match = /^[<~]?(\d[\d.,]*) ?(ns|us|ms|s|B|KiB|MiB|GiB|TiB|%|x)?(?![\w-])/.exec(text);
    return match ? Number(match[1].replaceAll(",", "")) * (SCALES[match[2]] || 1) : null;
  }
  function compareCells(one, other) {
    if (one.number !== null && other.number !== null) return one.number - other.number;
    return collator.compare(one.text, other.text);
  }
  function sortTable(table, place, button) {
    const head = button.parentElement, body = table.tBodies[0];
    const isNumber = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !isNumber;
    const keyed = Array.from(body.rows, (row) => {
      const cell = row.cells[place], text = cell && cell.colSpan === 1 ? cell.textContent : "";
      return { row, text, number: isNumber ? sortKey(text) : null, isEmpty: text === "" || text === "-" };
    });
    keyed.sort((one, other) => one.isEmpty - other.isEmpty || (one.isEmpty ? 0 : (ascending ? 1 : -1) * compareCells(one, other)));
    body.append(...keyed.map((item) => item.row));
    all("th[aria-sort]", table.tHead).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    status.textContent = `${table.caption.textContent}: sorted by ${button.textContent}, ${ascending ? "ascending" : "descending"}`;
  }
  function addFilter(table) {
    const rows = Array.from(table.tBodies[0].rows);
    const label = make("label", "Filter ", "filter"), input = make("input"), count = make("output");
    input.type = "search";
    input.setAttribute("aria-label", `Filter ${table.caption.textContent}`);
    label.append(input, count);
    table.parentElement.before(label);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      let shown = 0;
      rows.forEach((row) => {
        row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      });
      count.textContent = wanted ? `${shown} of ${rows.length} rows` : "";
    });
  }
  all("table[data-sortable]").forEach((table) => {
    if (table.tBodies[0].rows.length < 2) return;
    Array.from(table.tHead.rows[0].cells).forEach((head, place) => {
      const button = make("button", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => sortTable(table, place, button));
    });
    if (table.tBodies[0].rows.length > MANY_ROWS) addFilter(table);
  });

  // A link to a folded part opens it.
  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();
})();
