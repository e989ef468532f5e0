// Every visible text whose contrast to what it stands on is below 4.5 : 1.
(() => {
  const parse = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const over = (upper, lower) => upper.rgb.map((part, at) => part * upper.alpha + lower[at] * (1 - upper.alpha));
  const behind = (node) => {
    if (!node) return [255, 255, 255];
    const own = parse(getComputedStyle(node).backgroundColor);
    return own.alpha === 1 ? own.rgb : over(own, behind(node.parentElement));
  };
  const light = (rgb) =>
    rgb
      .map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("script, noscript, .unseen, .skip")) continue;
    const below = behind(node);
    const [one, other] = [over(parse(getComputedStyle(node).color), below), below].map(light).sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) found.add(`${ratio.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return [...found];
})();
