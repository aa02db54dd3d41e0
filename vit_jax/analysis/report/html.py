"""Building blocks of an HTML page: style, sections, tables, key figures, images.

Every text is escaped here and every image is embedded, so the page is one file that loads nothing
else. Sections have two columns on a wide screen and one on a phone. The colours follow the reader's
light or dark mode; figures keep their white background.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape as escape_html
from typing import NamedTuple

from vit_jax.runs import RunDir
from vit_jax.text import printable

_STYLE = """
:root { color-scheme: light dark; --text: #1c2127; --soft: #57606a; --ground: #fff;
  --line: #d8dee4; --link: #0a58ca; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #a3abb5; --ground: #16191d;
  --line: #353b43; --link: #7db1ff; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--ground);
  max-width: 84em; margin: 0 auto; padding: 1.5em 1em 4em; overflow-wrap: anywhere; }
h1 { line-height: 1.2; margin: 0 0 .3em; }
h2 { margin: 2.2em 0 .6em; padding-top: .6em; border-top: 1px solid var(--line); }
h3 { margin: 1.6em 0 .4em; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .3em 1.3em; list-style: none; padding: 0; }
section { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34em, 100%), 1fr));
  gap: 0 2.5em; align-items: start; }
section > * { min-width: 0; }
section > h2, section > p, section > pre, .wide, .cards { grid-column: 1 / -1; }
section > p { max-width: 52em; margin: .3em 0; }
.cards { display: flex; flex-wrap: wrap; gap: 1em; margin: .2em 0 1em; }
.cards div { border: 1px solid var(--line); border-radius: 6px; padding: .6em 1.1em; }
.cards dt { color: var(--soft); font-size: .85em; }
.cards dd { margin: 0; font-size: 1.35em; font-variant-numeric: tabular-nums; }
.cards small { display: block; color: var(--soft); font-size: .6em; }
pre { overflow-x: auto; margin: .3em 0 1em; padding: .6em 1em; border: 1px solid var(--line);
  border-radius: 6px; font-size: .85em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .25em 1.4em .25em 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
figure { margin: 1em 0 1.8em; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); }
figure.wide img { min-width: 44em; }
figcaption, .note { color: var(--soft); max-width: 52em; margin-top: .5em; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


class Section(NamedTuple):
    """Section: a heading and the pieces of HTML below it."""

    title: str
    parts: Sequence[str]


def page(title: str, summary: str, sections: Iterable[Section]) -> str:
    """Return a page with title, summary, links and sections; empty sections are skipped."""
    there = [
        Section(title, [part for part in parts if part]) for title, parts in sections if any(parts)
    ]
    links = "".join(
        f'<li><a href="#{_anchor(one.title)}">{escape(one.title)}</a></li>' for one in there
    )
    body = "\n".join(
        f'<section id="{_anchor(one.title)}">\n<h2>{escape(one.title)}</h2>\n'
        + "\n".join(one.parts)
        + "\n</section>"
        for one in there
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n{paragraph(summary)}\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def titled(text: str, *parts: str) -> str:
    """Return parts of a section under a heading, in one column; empty without parts."""
    body = "\n".join(part for part in parts if part)
    return f"<div><h3>{escape(text)}</h3>\n{body}</div>" if body else ""


def wide(part: str) -> str:
    """Return a part over both columns of its section; empty for an empty part."""
    return f'<div class="wide">{part}</div>' if part else ""


def cards(facts: Iterable[tuple[str, str, str]]) -> str:
    """Return key figures side by side: name, value and an optional remark of each."""
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        f"{f'<small>{escape(remark)}</small>' if remark else ''}</dd></div>"
        for name, value, remark in facts
    )
    return f'<dl class="cards">{body}</dl>' if body else ""


def code(text: str) -> str:
    """Return preformatted text, such as a command."""
    return f"<pre><code>{escape(text)}</code></pre>"


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """Return a secondary paragraph, in a softer colour."""
    return f'<p class="note">{escape(text)}</p>'


def table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    """Return rows of a name and texts; empty without rows. columns: headings."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>' if body else ""


def image(png: bytes, alt: str, caption: str, wide: bool = False) -> str:
    """Return an image with a description (`alt`, read aloud) and a caption on how to read it.

    wide: scrolled sideways on a narrow screen, where it would be too small to read.
    """
    data = base64.b64encode(png).decode()
    kind = ' class="wide"' if wide else ""
    return (
        f'<figure{kind}><div class="scroll"><img alt="{escape(alt)}" '
        f'src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def stored(run: RunDir, name: str, alt: str, caption: str, wide: bool = False) -> str:
    """Return an existing figure of a run, as `image`; empty if it is missing."""
    path = run.figures / f"{name}.png"
    return image(path.read_bytes(), alt, caption, wide) if path.exists() else ""


def percent(share: float) -> str:
    """Return a fraction as text, such as `12.34 %`."""
    return f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def escape(text: str) -> str:
    """Return text from outside as HTML: no markup, no control or direction characters."""
    return escape_html(printable(text))


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
