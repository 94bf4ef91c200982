"""All pages of docs/reference, by the names of their files."""

from __future__ import annotations

from pathlib import Path

from docs.generate.bodies import api_pages
from docs.generate.metrics import metrics_page
from docs.generate.options import cli_page, configuration_page

REFERENCE = Path(__file__).parents[1] / "reference"
MARK = "<!-- Below this line the page is made by docs/generate (`make docs`). -->"


def pages() -> dict[str, str]:
    """Return the text of each page, by the name of its file."""
    made = {
        "cli.md": cli_page(),
        "configuration.md": configuration_page(),
        **api_pages(),
        "metrics.md": metrics_page(),
    }
    by_hand = {name: (REFERENCE / name).read_text().partition(MARK)[0] for name in made}
    return {name: f"{by_hand[name]}{MARK}\n\n{text}\n" for name, text in made.items()}
