for (const field of document.querySelectorAll("input.filter")) {
  const rows = (field.closest("section") ?? document).querySelectorAll("tbody tr, dl.glossary > div");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}
