"""Values of facts: codes, times, prices, places, passwords.

Values from a large space have held-out spellings: a code was never an answer in training. Small
closed sets (weekdays, colours, hours) were in the training too.
"""

from __future__ import annotations

from collections.abc import Sequence

from handbook.texts.names import Draw, NameSource, company, made_up_name, made_up_word, person

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
COLOURS = (
    "red", "blue", "green", "yellow", "orange", "purple", "white", "black", "grey", "brown",
    "silver", "pink", "turquoise", "gold",
)  # fmt: skip
DISHES = (
    "lentil soup", "fish pie", "vegetable curry", "mushroom risotto", "chicken stew", "bean chili",
    "tomato pasta", "potato gratin", "rice salad", "pumpkin soup", "onion tart", "noodle soup",
)  # fmt: skip
CURRENCIES = ("euros", "dollars", "pounds", "crowns", "francs")
SPANS = ("days", "weeks", "months", "years")
STREETS = ("Street", "Road", "Lane", "Avenue", "Square")
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
SYMBOLS = LETTERS + "abcdefghijkmnopqrstuvwxyz" + "23456789" * 2 + "-_"


def _digits(source: NameSource, count: int) -> str:
    return source.unseen(lambda: "".join(source.pick("0123456789") for _ in range(count)))


def code(source: NameSource) -> str:
    """Draw three to six digits."""
    return _digits(source, source.number(3, 6))


def four_digits(source: NameSource) -> str:
    """Draw four digits, as of a door code."""
    return _digits(source, 4)


def extension(source: NameSource) -> str:
    """Draw a telephone extension of three or four digits."""
    return _digits(source, source.number(3, 4))


def telephone(source: NameSource) -> str:
    """Draw a telephone number in groups."""
    return source.unseen(
        lambda: f"0{source.number(10, 99)} {source.number(100, 999)} {source.number(1000, 9999)}"
    )


def password(source: NameSource) -> str:
    """Draw a password: random characters, or made-up words and a number."""
    if source.chance(0.6):
        return source.unseen(
            lambda: "".join(source.pick(SYMBOLS) for _ in range(source.number(6, 10)))
        )
    return f"{made_up_word(source)}-{made_up_word(source)}-{source.number(10, 99)}"


def part_number(source: NameSource) -> str:
    """Draw letters, a dash and digits."""
    return source.unseen(
        lambda: f"{source.pick(LETTERS)}{source.pick(LETTERS)}-{source.number(100, 9999)}"
    )


def parking_space(source: NameSource) -> str:
    """Draw a letter and one to three digits."""
    return f"{source.pick(LETTERS)}{source.number(1, 199)}"


def hours(source: NameSource) -> str:
    """Draw opening hours, such as 07:30 to 18:00."""
    minutes = ("00", "15", "30", "45")
    opens = f"{source.number(6, 11):02d}:{source.pick(minutes)}"
    return f"{opens} to {source.number(12, 22):02d}:{source.pick(minutes)}"


def time_of_day(source: NameSource) -> str:
    """Draw a time, such as 14:20."""
    return f"{source.number(6, 22):02d}:{source.number(0, 11) * 5:02d}"


def price(source: NameSource) -> str:
    """Draw an amount of money, with a sign or a currency's name."""
    cents = f".{source.number(0, 99):02d}" if source.chance(0.5) else ""
    amount = f"{source.number(2, 2500)}{cents}"
    if source.chance(0.4):
        return source.pick("$€£") + amount
    return f"{amount} {source.pick(CURRENCIES)}"


def span(source: NameSource) -> str:
    """Draw a length of time, such as 24 months."""
    return f"{source.number(2, 90)} {source.pick(SPANS)}"


def date(source: NameSource) -> str:
    """Draw a day and a month, in either order."""
    day, month = source.number(1, 28), source.pick(MONTHS)
    return f"{day} {month}" if source.chance(0.6) else f"{month} {day}"


def network_address(source: NameSource) -> str:
    """Draw a private network address."""
    return source.unseen(
        lambda: f"10.{source.number(0, 255)}.{source.number(0, 255)}.{source.number(1, 254)}"
    )


def street(source: NameSource) -> str:
    """Draw a street with a house number."""
    return f"{source.number(1, 240)} {made_up_name(source)} {source.pick(STREETS)}"


def email(source: NameSource) -> str:
    """Draw an email address at a made-up domain."""
    return f"{made_up_word(source)}@{made_up_word(source)}.example"


def one_of(options: Sequence[str]) -> Draw:
    """Return a function that draws from a small set, such as `COLOURS`."""
    return lambda source: source.pick(options)


def up_to(most: int) -> Draw:
    """Return a function that draws a whole number from 1 to `most`."""
    return lambda source: str(source.number(1, most))


ANYTHING = (
    code, four_digits, part_number, person, company, made_up_word, made_up_name, one_of(COLOURS),
    up_to(60), date, time_of_day, price, password, street, one_of(WEEKDAYS),
)  # fmt: skip
"""The kinds of values that a fact about any subject may have."""
