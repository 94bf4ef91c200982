"""The writer of the pages of docs/reference."""

from docs.generate.pages import REFERENCE, pages

for page, text in pages().items():
    (REFERENCE / page).write_text(text)
