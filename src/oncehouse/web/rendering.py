"""Pages as HTML: one Jinja environment, in which everything is escaped and nothing undefined passes.

A page is a template and what it shows. Its block `live` is what server-sent events bring anew; the rest stands still.
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
    shows: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The last net: whatever a template shows holds no secret and no character that cannot be seen.
        finalize=formatting.make_visible,
    )
    environment.filters.update(
        number=formatting.spell_number,
        short=formatting.spell_short,
        duration=formatting.spell_duration,
        moment=formatting.spell_moment,
        bytes=formatting.spell_bytes,
        share=formatting.spell_share,
        first_line=lambda text: (text or "").partition("\n")[0],
        holder=lambda text: text.partition(" (")[0],
        path=partial(quote, safe=""),
    )
    environment.globals.update(draw_curve=formatting.draw_curve, link=link, version=__version__)
    # Not imported by the templates: a block that is rendered alone would not see it.
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment


def link(path: str, **query: object) -> str:
    """A path with what is asked for behind it; what is not said is left out."""
    said = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(said)}" if said else path


def render(environment: Environment, page: Page, frame: Mapping[str, Any]) -> str:
    """The whole page."""
    return environment.get_template(page.template).render(**page.shows, **frame, title=page.title)


def render_live(environment: Environment, page: Page, frame: Mapping[str, Any]) -> str:
    """What of the page changes."""
    template = environment.get_template(page.template)
    context = template.new_context({**page.shows, **frame, "title": page.title})
    return "".join(template.blocks["live"](context))
