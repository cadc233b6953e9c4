"""The page is one harmless file: no network, everything escaped, only its own two scripts may run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import report_making as make
from plotly.offline import get_plotlyjs

from vitscale.report import html


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def hostile() -> str:
    return html.render(make.hostile_study())


@pytest.fixture(scope="module")
def page() -> str:
    return html.render(make.scaling_study())


def own(text: str) -> str:
    """The page without plotly's script."""
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


def test_names_are_text_and_nothing_else(hostile):
    found = Page(own(hostile))
    assert not {"img", "iframe", "object", "embed", "link", "base", "form"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert sum(tag == "script" for tag, _ in found.tags) == 3
    for name in ("<img src=x onerror=", "</script><script>", "../../../tmp/outside", "[x](http://example.org)"):
        assert name in found.text
    assert "\x1b" not in hostile
    assert "\u202e" not in hostile


def test_nothing_is_loaded_from_anywhere(page):
    for tag, attributes in Page(own(page)).tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert not re.search(r"url\(|@import|https?://", own(page))


def test_only_its_own_scripts_may_run(page):
    policy = next(a["content"] for t, a in Page(own(page)).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_data_is_strict_json(hostile):
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile, flags=re.S)
    assert raw
    assert "<" not in raw[1]
    data = json.loads(raw[1], parse_constant=lambda name: pytest.fail(f"{name} in the page's data"))
    assert {panel["name"] for panel in data["panels"]} >= {"scaling-speedup", "attribution-share"}
    assert data["csv"].startswith("case,")


def test_figures_have_names_for_those_who_do_not_see_them(page):
    plots = [attributes for _, attributes in Page(own(page)).tags if attributes.get("role") == "img"]
    assert len(plots) == 10
    named = [attributes for attributes in plots if attributes.get("data-panel")]
    assert all(len(attributes["aria-label"] or "") > 40 for attributes in named)
    assert "Efficiency" in page
    assert any("ddp 0.88" in (attributes["aria-label"] or "") for attributes in named)


def test_ids_are_unique_and_links_lead_to_them(page):
    tags = Page(own(page)).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links[0] == "#verdict"
    assert {link[1:] for link in links if link} <= set(ids)


def test_parts_come_in_reading_order(page):
    sections = re.findall(r'<section id="([a-z]+)"', page)
    assert sections == ["verdict", "figures", "cases", "failures", "warnings", "environment", "reading"]


def test_environments_that_differ_are_marked_and_first(page):
    assert re.search(r'<tr class="differs"><th scope="row">driver</th><td>580.12</td><td>570.01</td>', page)


def test_a_study_of_failures_alone_is_a_page_too():
    text = html.render(make.summary(make.case("a", None), environments=(), noise_floor=None))
    assert "No case of this study gave a speed" in text
    assert 'id="figures"' not in text
    assert "do not say what they were measured on" in text
