"""What stands below an item of a list is indented by two or three characters, as repositories show it."""

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig


class Indents(Extension):
    """Two characters below an item belong to it; by itself the library asks for four."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.build_parser()  # its parts remember the length they were built with


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.insert(0, Indents())  # before those that add to the parser
    return config
