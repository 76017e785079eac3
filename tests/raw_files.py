"""Raw files as their publishers give them, and readers that refuse what they are not."""
from conftest import quiet, refusal


def fails(reader, root, *words, size=None) -> str:
    """The line with which a reader refuses the files below a folder; it holds the words."""
    return refusal(lambda: reader.read(root, size or reader.SIZES[0], quiet), *words)
