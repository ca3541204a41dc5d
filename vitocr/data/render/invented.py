"""Text that is in no dictionary: numbers, prices, times, telephone numbers, addresses of the web, plates and codes,
made-up names, and strings without any sense.

Each function takes a random.Random and returns a string. They are what makes a recogniser look at every character
rather than guess the word.
"""

from __future__ import annotations

import random
from collections.abc import Callable

VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ea", "ai", "ou", "oo", "ee", "y")
STARTS = ("b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "qu", "st", "tr",
          "pl", "br", "cl", "fr", "gr", "sh", "ch", "th", "kr", "sp", "sk", "sl", "pr", "dr", "x")  # fmt: skip
ENDS = ("", "", "", "n", "r", "s", "l", "t", "m", "d", "k", "x", "ck", "ll", "ss", "nt", "rd", "st", "ng", "tz", "ff")
BRAND_ENDS = ("ex", "co", "ia", "o", "a", "us", "ix", "tek", "tech", "mart", "soft", "line", "land", "ville", "way",
              "berg", "son", "stein", "ton", "ford", "wood", "house", "shop", "net", "star", "max", "plus",
              "corp")  # fmt: skip
DOMAINS = (".com", ".com", ".com", ".net", ".org", ".co.uk", ".de", ".fr", ".edu", ".gov", ".info", ".tv", ".com.sg",
           ".co.kr", ".io", ".in", ".it")  # fmt: skip
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
UNITS = ("km", "m", "cm", "mm", "kg", "g", "ml", "L", "mph", "MHz", "GB", "MB", "KB", "W", "V", "am", "pm", "AM", "PM",
         "x", "st", "nd", "rd", "th", "th", "s", "oz", "ft", "K", "%", "%", "%", "+", "pcs", "%OFF")  # fmt: skip
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_LOOKALIKES = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"  # plates and codes avoid I, O and Q
ANY = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
CURRENCY = ("$", "$", "$", "$", "", "S$", "US$", "Rs.", "€", "£", "¥")


def _digits(rng: random.Random, count: int) -> str:
    return str(rng.randrange(10**count)).zfill(count)


def number(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return str(rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 4))))
    if kind < 0.5:
        return str(rng.randint(1850, 2035))
    if kind < 0.62:
        return _digits(rng, rng.choice((2, 3, 4, 5, 6, 8)))
    if kind < 0.72:
        return f"{rng.randrange(1, 10 ** rng.choice((4, 5, 6, 7, 8))):,}"
    if kind < 0.8:
        return f"{rng.randrange(10 ** rng.choice((1, 2, 3)))}.{_digits(rng, rng.choice((1, 1, 2, 3)))}"
    if kind < 0.94:
        return f"{rng.randrange(1, 10 ** rng.choice((1, 2, 3)))}{rng.choice(UNITS)}"
    sign = rng.choice(("#", "No.", "-", "+", "/", "x", "'", "&"))
    return f"{sign}{rng.randrange(1, 10 ** rng.choice((1, 2, 3)))}"


def price(rng: random.Random) -> str:
    amount = rng.randrange(1, 10 ** rng.choice((1, 2, 2, 3, 4)))
    cents = rng.choice(("", ".00", ".50", ".99", ".95", f".{_digits(rng, 2)}"))
    return f"{rng.choice(CURRENCY)}{amount}{cents}"


def time_or_date(rng: random.Random) -> str:
    hour, minute, day = rng.randint(0, 23), rng.choice((0, 0, 15, 30, 45, rng.randrange(60))), rng.randint(1, 31)
    month, year = rng.randint(1, 12), rng.randint(1950, 2035)
    return rng.choice(
        (
            f"{hour}:{minute:02}",
            f"{hour % 12 + 1}:{minute:02}{rng.choice(('am', 'pm', 'AM', 'PM', 'a.m.', 'p.m.'))}",
            f"{hour % 12 + 1}{rng.choice(('am', 'pm', 'AM', 'PM'))}",
            f"{hour % 12 + 1}-{rng.randint(1, 12)}{rng.choice(('am', 'pm', 'PM'))}",
            f"{day}/{month}/{year % 100:02}",
            f"{day:02}.{month:02}.{year}",
            f"{year}-{month:02}-{day:02}",
            f"{year}-{(year + 1) % 100:02}",
            f"{day}{MONTHS[month - 1]}",
            f"{day}{rng.choice(('st', 'nd', 'rd', 'th'))}",
            "24/7",
        )
    )


def telephone(rng: random.Random) -> str:
    a, b, c, d = _digits(rng, 3), _digits(rng, 3), _digits(rng, 4), _digits(rng, 4)
    return rng.choice((f"{a}-{b}-{c}", f"({a}){b}-{c}", f"{b}-{c}", f"{a}.{b}.{c}", f"1-800-{b}-{c}", f"{c}{d}",
                       f"+{rng.randint(1, 99)}{a}{b}{c}", f"{c}-{d}", f"({a})"))  # fmt: skip


def plate(rng: random.Random) -> str:
    """Number plates, product codes, floors and platforms."""
    letters = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3)))
    digits = _digits(rng, rng.randint(1, 4))
    kind = rng.random()
    if kind < 0.3:
        return letters + rng.choice(("", "-", "")) + digits
    if kind < 0.45:
        return digits + rng.choice(("", "-")) + letters
    if kind < 0.6:
        return letters + digits + rng.choice(LETTERS)
    if kind < 0.7:
        return f"#{_digits(rng, 2)}-{_digits(rng, rng.choice((2, 2, 3)))}"
    return "".join(rng.choice(NO_LOOKALIKES) for _ in range(rng.randint(3, 9)))


def made_up_name(rng: random.Random) -> str:
    """Something that can be pronounced, as brands and foreign names are."""
    word = ""
    for _ in range(rng.choice((1, 1, 2, 2, 2, 2, 3, 3, 4))):
        word += rng.choice(STARTS) + rng.choice(VOWELS) + rng.choice(ENDS)
    return word + rng.choice(BRAND_ENDS) if rng.random() < 0.3 else word


def nonsense(rng: random.Random) -> str:
    kind = rng.random()
    length = rng.choice((1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 11))
    if kind < 0.45:
        return "".join(rng.choice(LETTERS) for _ in range(length))
    if kind < 0.75:
        return "".join(rng.choice(LETTERS) for _ in range(length)).lower()
    if kind < 0.9:
        return "".join(rng.choice(ANY) for _ in range(length))
    return "".join(rng.choice(ANY + MARKS) for _ in range(length))


def address(rng: random.Random, word: Callable[[], str]) -> str:
    """Addresses of the web and of mail, hash tags and handles, out of ordinary words."""
    name = "".join(character for character in word().lower() if character.isalnum())
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(("www.", "www.", "", "http://")) + name + rng.choice(DOMAINS)
    if kind < 0.6:
        return f"{rng.choice(('info', 'sales', 'contact', name[:6]))}@{name}{rng.choice(DOMAINS)}"
    if kind < 0.75:
        return rng.choice("#@") + name
    if kind < 0.88:
        return name + rng.choice(DOMAINS)
    return rng.choice(("www.", "www", ".com", ".co", "http://", f"{name}.", f"/{name}", f".{name}."))


def syllables(rng: random.Random) -> str:
    """Hangul syllables at random, the frequent shapes more often; NFC by construction."""
    word = ""
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
        last = 0 if rng.random() < 0.55 else rng.choice((1, 4, 8, 16, 17, 19, 21, rng.randrange(28)))
        word += chr(
            0xAC00 + (rng.randrange(19) * 21 + rng.choice((0, 4, 8, 13, 18, 20, rng.randrange(21)))) * 28 + last
        )
    return word
