// Builds nodes out of text alone, and makes what is on the page equal to what was built: focus and scrolling stay.

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") {
      for (const [property, set] of Object.entries(value)) node.style.setProperty(property, set);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

// Shows `nodes` in `place`, changing no more than has changed.
export function show(place, ...nodes) {
  const wanted = document.createElement("div");
  wanted.append(...flat(nodes));
  const focused = document.activeElement;
  fitChildren(place, wanted);
  if (focused !== document.activeElement && place.contains(focused)) focused.focus({ preventScroll: true }); // it was moved
}

function fitChildren(place, wanted) {
  const keyed = new Map();
  for (const child of place.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let at = place.firstChild;
  for (const want of [...wanted.childNodes]) {
    const key = want.nodeType === Node.ELEMENT_NODE ? want.dataset.key : undefined;
    const same = key !== undefined ? keyed.get(key) : at && !isKeyed(at) && fits(at, want) ? at : null;
    if (same && fits(same, want)) {
      if (same === at) at = at.nextSibling;
      else place.insertBefore(same, at);
      fit(same, want);
    } else {
      place.insertBefore(want, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function isKeyed(node) {
  return node.nodeType === Node.ELEMENT_NODE && node.dataset.key !== undefined;
}

function fits(node, want) {
  return node.nodeType === want.nodeType && node.nodeName === want.nodeName;
}

function fit(node, want) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== want.data) node.data = want.data;
    return;
  }
  for (const { name } of [...node.attributes]) if (name !== "style" && !want.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of want.attributes) {
    if (name !== "style" && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  if (node.style.cssText !== want.style.cssText) node.style.cssText = want.style.cssText;
  fitChildren(node, want);
}

// A table whose cells are texts or nodes. Columns: { name, number: right-aligned, wide: only where there is room }.
// A row has cells, or it `says` something over the whole width.
export function table(caption, columns, rows) {
  const kind = (column) => [column.number && "number", column.wide && "wide-only"].filter(Boolean).join(" ") || undefined;
  return h(
    "table",
    {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kind(column) }, column.name)))),
    h(
      "tbody",
      {},
      rows.map(({ key, says, cells }) =>
        says
          ? h("tr", { "data-key": key, class: "says" }, h("td", { colspan: columns.length }, says))
          : h("tr", { "data-key": key }, cells.map((cell, at) => h("td", { class: kind(columns[at]) }, cell)))
      )
    )
  );
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}
