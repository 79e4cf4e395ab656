"""What tests of every page share: hostile text, a reader of HTML, and what no page may do."""

import re
from html.parser import HTMLParser

ATTACK = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'</pre></style>"
MARK = "alert"


class Reader(HTMLParser):
    """Collects tags, their attributes, and texts by the element that holds them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.texts, self._script = [], [], [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._script = dict(attrs).get("type", "code") if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts.append((self._script, data))
        else:
            self.texts.append(data)


def check_loads_nothing(page):
    """No address but the empty icon's, also in styles, and a policy that forbids all others."""
    for tag, name, value in Reader(page).attributes:
        if name in ("src", "href", "srcset", "action", "poster"):
            assert (tag, value) == ("link", "data:,")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page
