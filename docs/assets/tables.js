// Tables within <div class="sortable"> are sorted by a click on the head of a column. Without this script they are plain tables.
document.querySelectorAll(".sortable table").forEach((table) => {
  const body = table.tBodies[0];
  const key = (row, column) => row.cells[column].textContent.trim();
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const compare = (a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        const [m, n] = [parseFloat(x), parseFloat(y)];
        if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1; // empty cells stay last
        return sign * (Number.isNaN(m) ? x.localeCompare(y) : m - n);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
});
