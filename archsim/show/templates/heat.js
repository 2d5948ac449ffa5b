// Names the cell of a heatmap that one points at: experts, layer, and the share, which its colour tells.
for (const image of document.querySelectorAll("img.heat")) {
  const told = image.parentElement.querySelector(".pointed"), layers = image.dataset.layers ? image.dataset.layers.split(",") : null;
  let pixels;
  const point = (event) => {
    const { naturalWidth: across, naturalHeight: down } = image, box = image.getBoundingClientRect();
    const at = (value, size, count) => Math.min(count - 1, Math.max(0, Math.floor((value / size) * count)));
    const x = at(event.clientX - box.left, box.width, across), y = at(event.clientY - box.top, box.height, down);
    if (!pixels) {
      const canvas = Object.assign(document.createElement("canvas"), { width: across, height: down }).getContext("2d");
      canvas.drawImage(image, 0, 0);
      pixels = canvas.getImageData(0, 0, across, down).data;
    }
    const share = (pixels[4 * (y * across + x)] / 255) ** 2 * Number(image.dataset.largest);
    told.textContent = layers ? `expert ${x}, layer ${layers[y]}: about ${share.toPrecision(2)}` : `expert ${x} after or with expert ${y}: about ${share.toPrecision(2)}`;
  };
  for (const kind of ["pointermove", "pointerdown"]) image.addEventListener(kind, point);
}
