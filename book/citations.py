"""Citations as "Zhang et al., 2025a", in the text and in the bibliography: one label for each work.

Sphinx loads this. The letters stand where two works would have the same label, in the order of the bibliography.
"""
import collections
import string

from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle


def plain_label(entry) -> str:
    """'Li et al., 2021'; without a year 'Zhang et al., n.d.'."""
    names = [" ".join([*person.prelast_names, *person.last_names]) for person in entry.persons["author"]]
    names = [name.replace("{", "").replace("}", "") for name in names]
    who = names[0] + (f" and {names[1]}" if len(names) == 2 else " et al." if len(names) > 2 else "")
    return f"{who}, {entry.fields.get('year', 'n.d.')}"


class AuthorYear(BaseLabelStyle):
    def format_labels(self, sorted_entries):
        labels = [plain_label(entry) for entry in sorted_entries]
        count, seen = collections.Counter(labels), collections.Counter()
        for label in labels:
            letter = string.ascii_lowercase[seen[label]] if count[label] > 1 else ""
            seen[label] += 1
            yield label + letter


class Style(Plain):
    default_label_style = AuthorYear


def setup(app):
    register_plugin("pybtex.style.formatting", "author_year", Style)
    return {"parallel_read_safe": True}
