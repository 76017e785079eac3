"""What a user can get wrong, said in one line."""
from difflib import get_close_matches

SHOWN = 24      # of longer lists, an error shows the nearest names only


class UserError(Exception):
    """A mistake the user can mend. Its text is one line: what is wrong, and what is allowed."""


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return "no " * isinstance(error, KeyError) + next(iter(str(error).splitlines()), type(error).__name__)


def nearest(word: str, known) -> str:
    """'; did you mean 'FedProx'?' for the closest of the known names, or '' when none is close."""
    by_lower = {str(k).lower(): str(k) for k in known}
    close = get_close_matches(str(word).lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


def pick(what: str, word: str, known) -> str:
    """The word itself when it is known; else a UserError that names the nearest and lists what there is, or a part."""
    if not isinstance(word, str) or word not in known:
        names = list(map(str, known))
        some = names if len(names) <= SHOWN else get_close_matches(str(word), names, n=5, cutoff=0.3) or names[:5]
        more = f" and {len(names) - len(some)} more" * (len(some) < len(names))
        raise UserError(f"unknown {what} '{word}'{nearest(word, known)} (known: {', '.join(some)}{more})")
    return word
