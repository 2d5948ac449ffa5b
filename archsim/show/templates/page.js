for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.rows[0].querySelectorAll("th").forEach((header, column) => {
    header.tabIndex = 0;
    header.setAttribute("role", "button");
    const sort = () => {
      const down = header.getAttribute("aria-sort") === "ascending";
      for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const compare = (a, b) => (isNaN(key(a)) ? key(a).localeCompare(key(b)) : key(a) - key(b));
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
      table.tBodies[0].append(...rows);
    };
    header.addEventListener("click", sort);
    header.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
