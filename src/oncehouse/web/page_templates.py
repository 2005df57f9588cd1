"""Pages as HTML: one Jinja environment, which escapes all values and raises on undefined names.

A page is a template and its context. Server-sent events update its block `live`; the rest of the page is static.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from oncehouse import __version__
from oncehouse.web import formatting

_FOLDER = Path(__file__).parent
STATIC = _FOLDER / "static"


@dataclass(frozen=True, kw_only=True)
class Page:
    template: str
    title: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The last check: no value on a page holds a secret or an invisible character.
        finalize=formatting.make_visible,
    )
    environment.filters.update(
        number=formatting.format_number,
        short=formatting.format_short,
        duration=formatting.format_duration,
        moment=formatting.format_moment,
        bytes=formatting.format_size,
        share=formatting.format_share,
        first_line=lambda text: (text or "").partition("\n")[0],
        holder=lambda text: text.partition(" (")[0],
        path=partial(quote, safe=""),
    )
    environment.globals.update(draw_curve=formatting.draw_curve, link=link, version=__version__)
    # Not imported by the templates: a block that is rendered alone would not see it.
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment


def link(path: str, **query: object) -> str:
    """A path with a query string; parameters that are None are omitted."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def render(environment: Environment, page: Page, shared: Mapping[str, Any]) -> str:
    """The whole page."""
    return environment.get_template(page.template).render(**page.context, **shared, title=page.title)


def render_live(environment: Environment, page: Page, shared: Mapping[str, Any]) -> str:
    """The live part of the page."""
    template = environment.get_template(page.template)
    context = template.new_context({**page.context, **shared, "title": page.title})
    return "".join(template.blocks["live"](context))
