"""What tests of report pages look at: the outline of the HTML, and what a browser has drawn."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from browser import find_browser

NEEDS_BROWSER = pytest.mark.skipif(find_browser() is None, reason="no Chromium")
DRAWN = "document.documentElement?.dataset.drawnMs"
# Charts whose canvas holds nothing but its background.
BLANK = """[...document.querySelectorAll('.chart')].filter((chart) => {
  const found = [];
  const look = (root) => root.querySelectorAll('*').forEach((element) => {
    if (element.tagName == 'CANVAS') found.push(element);
    if (element.shadowRoot) look(element.shadowRoot);
  });
  look(chart);
  const colors = new Set();
  for (const canvas of found) {
    if (!canvas.width || !canvas.height) continue;
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    for (let k = 0; k < pixels.length && colors.size < 4; k += 3) colors.add(pixels[k]);
  }
  return colors.size < 4;
}).map((chart) => chart.id)"""


class Outline(HTMLParser):
    """Headings, ids, what labels refer to, and addresses."""

    def __init__(self, html):
        super().__init__()
        self.headings, self.ids, self.references, self.addresses, self.tables = [], [], [], [], 0
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tables += tag == "table"
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [found["id"]] if "id" in found else []
        for key in ("aria-labelledby", "aria-describedby", "for"):
            self.references += found.get(key, "").split()
        self.addresses += [found[key] for key in ("href", "src", "action") if key in found]
