"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, and the API reference.

Links from docs/ to other folders work in the repository. On the site they become links to its own
pages, or plain text if it has no such page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = ("RESULTS", "CLAIMS", "SMALL", "PUBLISHED")
MAIN = ("nmtgrid.search.translate", "nmtgrid.online.stream", "nmtgrid.online.policies")
"""Modules at the top of the API reference."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#]*)(#[^)]*)?\)")
_NAME = re.compile(r"`(nmtgrid\.[a-z_.]+)\.[A-Z]?\w*`")


def api_modules() -> list[str]:
    """Return the modules of the API reference: the main ones and those named in the glossary."""
    names = _NAME.findall((PROJECT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    modules = {n for n in names if (PROJECT / n.replace(".", "/")).with_suffix(".py").is_file()}
    return [*MAIN, *sorted(modules - {*MAIN})]


def on_config(config: Any) -> Any:
    """Complete the navigation: add pages that it does not list, and the API reference."""
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    listed = {page for pages in sections.values() for page in pages} | {sections["Home"]}
    names = sorted(path.name for path in (PROJECT / "docs").glob("*.md"))
    sections["How to"] += [name for name in names if name not in listed]
    pages = [f"api/{package}.md" for package in packages()]
    config.nav.append({"API": ["api/index.md", *pages]})
    return config


def packages() -> dict[str, list[str]]:
    """Return the modules of the API reference by package."""
    modules: dict[str, list[str]] = {}
    for module in api_modules():
        modules.setdefault(module.split(".")[1], []).append(module)
    return modules


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of results with their figures and records, and the API reference."""
    for name in RESULTS:
        text = (PROJECT / "recipes" / f"{name}.md").read_text(encoding="utf-8")
        files.append(File.generated(config, f"recipes/{name}.md", content=text))
    for folder in ("figures", "records"):
        for path in sorted((PROJECT / "recipes" / folder).iterdir()):
            uri = f"recipes/{folder}/{path.name}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    text = (
        "# API reference\n\nGenerated from the docstrings of the main modules and of those named "
        "in [the glossary](../glossary.md).\n"
    )
    for package, modules in packages().items():
        listed = "".join(f"::: {module}\n\n" for module in modules)
        page = f"# {package}\n\n{listed}"
        files.append(File.generated(config, f"api/{package}.md", content=page))
        text += f"\n* [{package}]({package}.md): " + ", ".join(f"`{module}`" for module in modules)
    files.append(File.generated(config, "api/index.md", content=text + "\n"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links from docs/ to other folders, and from recipes/ to docs/."""
    if page.file.src_uri.startswith("recipes/"):
        return markdown.replace("](../docs/", "](../")

    def rewritten(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        uri = "index.md" if target == "README.md" else target
        if files.get_file_from_path(uri) is None:
            return text
        return f"{image}[{text}]({uri}{anchor or ''})"

    return _LINK.sub(rewritten, markdown) if "/" not in page.file.src_uri else markdown
