"""mini_reviews: short synthetic product reviews in four domains, put together from a small grammar.

    books         the plot is gripping and i found the prose lyrical .
    dvd           although the picture was very grainy , the cast is not wooden .
    electronics   i plugged it in at once . the charger is hot .
    kitchen       the kettle is hot but the lid was never leaky .

Nobody wrote these reviews, and no product is meant. Each names parts of a product and says of each part that it is,
or is not, some opinion word. Most opinion words belong to one domain or to two that are alike, few to all; and some
mean the opposite elsewhere, as above: a hot kettle is praised, a hot charger is not. A review that says both good and
bad has the label of its main clause, after "but" or outside "although". So a reader knows every label, while a bag of
words, which sees neither the order nor what "not" belongs to, stays below 100 %.

Nothing is downloaded. Every random draw comes from a generator keyed by (purpose, domain), and the vocabulary is that
of the grammar, so a domain does not depend on which others were built before it.
"""
import numpy as np

from fedlib.core.errors import UserError
from fedlib.core.seeds import key

NAME = "mini_reviews"
TITLE = "Mini reviews (synthetic): books, dvd, electronics, kitchen"
KIND = "tokens"
CLASSES = ("negative", "positive")
DOMAINS = ("books", "dvd", "electronics", "kitchen")
SIZES = (24,)
BUILT_IN = True
# Reviews per class in (train, val, test, public), part codes 0 to 3.
PER_CLASS = dict.fromkeys(DOMAINS, (200, 80, 100, 100))
ABOUT = {
    "recipe": "1",  # another number when the reviews change: cached sets are then built again
    "source": "synthetic: reviews from a small grammar, written for this set; no review of a real product",
    "transform": "words and punctuation marks as token ids, padded with <pad> to 24; ids: <pad>, then all words of the "
                 "grammar by alphabet",
    "split": "fixed counts per domain, class and part (PER_CLASS); no two reviews share their opinions word for word; "
             "public reviews never enter a federation",
    "licence": "MIT, as fedlib; it holds no text of others",
    "citation": "none for the reviews; the domains and classes are named as in J. Blitzer et al., ACL 2007, whose "
                "reviews are not in it",
}

PAD = "<pad>"  # id 0, the only special: no review has an unknown word, since all words of the grammar have an id
NOUNS = {
    "books": ("plot", "prose", "chapter", "author", "narrator", "index", "translation", "novel", "argument", "dialogue",
              "cover", "print"),
    "dvd": ("picture", "cast", "soundtrack", "director", "menu", "sequel", "film", "scene", "actor", "transfer",
            "comedy", "commentary"),
    "electronics": ("charger", "screen", "battery", "cable", "speaker", "remote", "keyboard", "camera", "router",
                    "headset", "printer", "adapter"),
    "kitchen": ("kettle", "lid", "pan", "oven", "blender", "toaster", "knife", "handle", "grill", "bowl", "mixer",
                "timer"),
}
# Opinion words as (negative, positive): of every domain, of two domains that are alike, and of one.
OF_ALL = (("bad", "poor", "awful", "disappointing"), ("good", "great", "excellent", "wonderful"))
OF_TWO = {
    ("books", "dvd"): (("boring", "dull", "shallow", "tedious"), ("gripping", "moving", "clever", "witty")),
    ("electronics", "kitchen"): (("flimsy", "faulty", "useless", "broken"), ("reliable", "sturdy", "handy", "solid")),
}
OF_ONE = {
    "books": (("wordy", "preachy", "muddled", "unreadable", "rambling", "pedantic", "dry", "confused"),
              ("lyrical", "insightful", "poetic", "readable", "thoughtful", "learned", "vivid", "subtle")),
    "dvd": (("grainy", "wooden", "overacted", "corny", "cheesy", "blurred", "silly", "badly-cut"),
            ("hilarious", "stunning", "spectacular", "touching", "stylish", "well-acted", "charming", "thrilling")),
    "electronics": (("slow", "defective", "outdated", "distorted", "glitchy", "incompatible", "unresponsive", "noisy"),
                    ("fast", "responsive", "accurate", "portable", "compact", "bright", "compatible", "modern")),
    "kitchen": (("rusty", "sticky", "chipped", "warped", "leaky", "dented", "greasy", "scratched"),
                ("washable", "ovenproof", "rustproof", "spacious", "durable", "polished", "nonstick", "roomy")),
}
# Words that blame in the domains on the left and praise in those on the right.
TURNED = {
    "unpredictable": (("electronics", "kitchen"), ("books", "dvd")),
    "simple": (("books", "dvd"), ("electronics", "kitchen")),
    "hot": (("electronics",), ("kitchen",)),
    "small": (("books", "kitchen"), ("electronics",)),
    "quiet": (("dvd",), ("electronics", "kitchen")),
    "dark": (("electronics",), ("books", "dvd")),
    "heavy": (("books", "electronics"), ("kitchen",)),
    "loud": (("kitchen",), ("dvd",)),
}
SHARES = (0.36, 0.14, 0.38, 0.12)  # of the opinion words: OF_ALL, OF_TWO, OF_ONE, TURNED
NEGATED = 0.06  # share of the clauses with "not", "never"
ALONE, MIXED, OPENED = 0.1, 0.06, 0.5  # shares of the reviews: of one clause, good and bad, with an opening
OPENINGS = {
    None: ("i bought it last month .", "my sister gave it to me .", "it arrived on a monday .",
           "this is my second one .", "a friend told me about it ."),
    "books": ("i read it in two days .", "i borrowed it from the library ."),
    "dvd": ("we watched it on friday night .", "i saw it with the children ."),
    "electronics": ("i plugged it in at once .", "i use it at the office ."),
    "kitchen": ("i cook with it every day .", "i washed it before dinner ."),
}
CLAUSES = ("the {noun} is {word}", "the {noun} was {degree} {word}", "the {noun} seems {degree} {word}",
           "i found the {noun} {word}", "i think the {noun} is {word}")
NEGATIONS = ("the {noun} is not {word}", "the {noun} was never {word}", "i did not find the {noun} {word}")
DEGREES = ("very", "really", "quite", "rather", "truly", "so")
AGREEING = ("{main} and {other} .", "{main} . {other} .", "{main} . also {other} .")
DIFFERING = ("{other} but {main} .", "although {other} , {main} .", "{main} although {other} .")


def read(root=None, size=SIZES[0], say=print, skip=None):
    """The four domains as numpy arrays, and what the manifest adds: the words, in the order of their ids.

    `root` and `skip` are ignored: no file is read. Returns ({domain: (x int32 (N,24), y int64 (N,), part uint8 (N,))},
    {"words": [...]}), ordered by part, then class. Raises UserError for a size other than 24.
    """
    if size not in SIZES:
        raise UserError(f"{NAME} has no size {size} (allowed: {', '.join(map(str, SIZES))})")
    words = vocabulary()
    ids = {word: i for i, word in enumerate(words)}
    domains = {}
    for domain in DOMAINS:
        y, part = labels(domain)
        x = np.zeros((len(y), size), np.int32)
        for row, text in zip(x, texts(domain)):
            of_text = [ids[word] for word in text.split()]
            row[:len(of_text)] = of_text
        domains[domain] = (x, y, part)
        say(f"{NAME}: {domain}, {len(y)} reviews")
    return domains, {"words": words}


def labels(domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Class int64 (N,) and part code uint8 (N,) of every review of a domain, in the order of `read`."""
    per_part = [(np.repeat(np.arange(2), n), np.full(2 * n, code)) for code, n in enumerate(PER_CLASS[domain])]
    y, part = (np.concatenate(column) for column in zip(*per_part))
    return y.astype(np.int64), part.astype(np.uint8)


def texts(domain: str) -> list[str]:
    """Every review of a domain in the order of `read`, words and punctuation marks separated by a space.

    One whose opinions were drawn before is drawn again, whatever its opening is.
    """
    rng, drawn, found = np.random.default_rng(key(NAME, "reviews", domain)), set(), []
    for label in labels(domain)[0]:
        while (opinions := _opinions(rng, domain, label)) in drawn:
            pass
        drawn.add(opinions)
        opening = f"{_one_of(rng, OPENINGS[None] + OPENINGS[domain])} " if rng.random() < OPENED else ""
        found.append(opening + opinions)
    return found


def vocabulary() -> list[str]:
    """<pad>, then every word that the grammar can say, by alphabet: the words in the order of their ids."""
    said = [*DEGREES, *TURNED, *CLAUSES, *NEGATIONS, *AGREEING, *DIFFERING]
    for group in (*NOUNS.values(), *OPENINGS.values(), *OF_ALL, *(w for two in OF_TWO.values() for w in two),
                  *(w for one in OF_ONE.values() for w in one)):
        said += group
    return [PAD, *sorted({word for text in said for word in text.split() if not word.startswith("{")})]


def opinion_words(domain: str) -> tuple[tuple, tuple]:
    """The negative and the positive opinion words of a domain, each as (of all, of two, of one, turned)."""
    two = next(words for pair, words in OF_TWO.items() if domain in pair)
    return tuple((OF_ALL[sign], two[sign], OF_ONE[domain][sign],
                  tuple(word for word, sides in TURNED.items() if domain in sides[sign])) for sign in (0, 1))


def _opinions(rng, domain: str, label: int) -> str:
    """One clause, or two about different parts of the product that agree or differ."""
    main, other = rng.choice(len(NOUNS[domain]), 2, replace=False)
    form = rng.random()
    if form < ALONE:
        return f"{_clause(rng, domain, main, label)} ."
    differ = form < ALONE + MIXED
    return _one_of(rng, DIFFERING if differ else AGREEING).format(
        main=_clause(rng, domain, main, label), other=_clause(rng, domain, other, label ^ differ))


def _clause(rng, domain: str, noun: int, label: int) -> str:
    negated = rng.random() < NEGATED
    kind = rng.choice(len(SHARES), p=SHARES)
    return _one_of(rng, NEGATIONS if negated else CLAUSES).format(
        noun=NOUNS[domain][noun], degree=_one_of(rng, DEGREES),
        word=_one_of(rng, opinion_words(domain)[label ^ negated][kind]))


def _one_of(rng, choices):
    return choices[rng.integers(len(choices))]


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
