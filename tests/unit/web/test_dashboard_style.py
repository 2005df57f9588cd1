"""The dashboard's one sheet: text that can be read in light and in dark, and nothing that the policy would refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oncehouse.web

FOLDER = Path(oncehouse.web.__file__).parent
SHEET = (FOLDER / "static" / "dashboard.css").read_text()
# Each colour of text on each ground that it stands on.
PAIRS = [
    *((text, ground) for text in ("text", "soft", "link") for ground in ("page", "card", "sunk")),
    *((kind, f"{kind}-soft") for kind in ("good", "warn", "bad", "busy")),
    *((kind, "card") for kind in ("warn", "bad", "busy")),
]


def colours(scheme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{([^}]+)\}", SHEET)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found if scheme == "light" else found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark))


def luminance(colour: str) -> float:
    """As WCAG reckons it."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted([luminance(first), luminance(second)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(scheme, text, ground):
    found = colours(scheme)
    assert contrast(found[text], found[ground]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_strongest_button_can_be_read(scheme):
    assert contrast("#ffffff" if scheme == "light" else "#06201d", colours(scheme)["flow"]) >= 4.5


def test_every_colour_that_is_used_is_declared_for_both():
    assert set(re.findall(r"var\(--([\w-]+)\)", SHEET)) <= set(colours("light")) | {"sans", "mono", "shadow"}
    light, dark = re.findall(r":root \{([^}]+)\}", SHEET)
    assert set(re.findall(r"--([\w-]+): #", light)) == set(re.findall(r"--([\w-]+): #", dark))


def test_nothing_is_fetched_from_elsewhere():
    for path in (FOLDER / "static").iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|@import|url\(", text) == [], path.name


def test_templates_use_classes_that_the_sheet_has():
    """A class that nobody styles is most likely misspelt."""
    used = set()
    for path in (FOLDER / "templates").glob("*.html"):
        for names in re.findall(r'class="([^"]*)"', re.sub(r"\{[{%].*?[%}]\}", " ", path.read_text())):
            used |= set(names.split())
    styled = set(re.findall(r"\.([a-z][\w-]*)", SHEET))
    assert used - styled <= {"calm", "done", "plain"}
