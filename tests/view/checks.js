/* What a page is looked at for, in the browser: each gives the places where something is wrong. */

/* Text whose contrast to what is behind it is less than 4.5 : 1. */
function contrast() {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const seen = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = seen(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || element.closest("svg, script, style, noscript, .unseen, .skip, :disabled") || !element.checkVisibility()) continue;
    const [low, high] = [light(seen(getComputedStyle(element).color)), light(behind(element))].sort((one, other) => one - other);
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push(`${text.slice(0, 30)} in ${element.className || element.tagName}`);
  }
  return found;
}

/* What can be used or is a landmark, and has no name. */
function nameless() {
  const all = "button, input, select, a, summary, [tabindex], [role=grid], [role=region], section, svg[role]";
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";
  return [...document.querySelectorAll(all)].filter((element) => {
    if (!element.checkVisibility() || element.id === "map") return false;
    const labelled = (element.getAttribute("aria-labelledby") ?? "").split(" ").map(textOf).join("");
    const labels = [...(element.labels ?? [])].map((label) => label.textContent).join("");
    const own = ["BUTTON", "A", "SUMMARY"].includes(element.tagName) ? element.textContent : "";
    return ![element.getAttribute("aria-label"), labelled, labels, own].some((words) => words?.trim());
  }).map((element) => element.outerHTML.slice(0, 120));
}

/* Cells that are in no row, rows that are in no grid. */
function stray() {
  const owners = {gridcell: "[role=row]", row: "[role=grid], [role=rowgroup]", rowgroup: "[role=grid]"};
  const lost = ([role, owner]) => [...document.querySelectorAll(`[role=${role}]`)].filter((element) => !element.parentElement.closest(owner));
  return Object.entries(owners).flatMap(lost).map((element) => element.outerHTML.slice(0, 120));
}

/* Text of a picture that reaches beyond its edge. */
function outside() {
  const {width, height} = document.documentElement.viewBox.baseVal;
  return [...document.querySelectorAll("text")].filter((element) => {
    const {left, top, right, bottom} = element.getBoundingClientRect();
    return left < 0 || top < 0 || right > width || bottom > height;
  }).map((element) => element.textContent);
}

/* How the outline of what has the focus looks. */
function outline() {
  const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement);
  return `${outlineStyle} ${outlineWidth} on ${document.activeElement.tagName}`;
}

/* Texts of a plot or of a timeline that overlap. */
function overlaps() {
  const found = [];
  for (const svg of document.querySelectorAll(".lanes, .lane-names, .plot-area, .y-axis")) {
    const boxes = [...svg.querySelectorAll(":scope > text")].map((one) => [one.textContent, one.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    boxes.forEach(([text, box], at) => boxes.slice(at + 1).forEach(([other, its]) => {
      const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
      const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
      if (wide > 1 && high > 5) found.push([svg.className.baseVal, text, other]);
    }));
  }
  return found;
}
