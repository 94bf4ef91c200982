"""The names in a handbook: real names, and names made up from syllables.

Made-up names and open-ended values have spellings that were held out of the embedded model's
training, by a checksum. So the model cannot know them.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

Option = TypeVar("Option")
HELD_OUT_SHARE = 5
"""One of every HELD_OUT_SHARE made-up spellings was held out of the training."""

CITIES = (
    "Berlin", "Oslo", "Paris", "London", "Madrid", "Rome", "Vienna", "Prague", "Lisbon", "Dublin",
    "Athens", "Warsaw", "Helsinki", "Bergen", "Hamburg", "Munich", "Zurich", "Geneva", "Lyon",
    "Milan", "Turin", "Porto", "Seville", "Krakow", "Budapest", "Riga", "Tallinn", "Vilnius",
    "Cairo", "Nairobi", "Lagos", "Accra", "Mumbai", "Delhi", "Tokyo", "Osaka", "Seoul", "Taipei",
    "Sydney", "Perth", "Boston", "Chicago", "Denver", "Austin", "Seattle", "Toronto", "Montreal",
    "Lima", "Bogota", "Santiago", "New York", "San Francisco", "Cape Town", "Hong Kong",
    "Zürich", "Kraków", "Malmö", "Göteborg", "São Paulo", "Singapore", "Amsterdam", "Copenhagen",
    "Stockholm", "Brussels", "Barcelona", "Istanbul", "Frankfurt", "Cologne", "Leeds", "Glasgow",
)  # fmt: skip
FIRST_NAMES = (
    "Ingrid", "Paul", "Maria", "Ahmed", "Chen", "Olga", "James", "Priya", "Lars", "Sofia", "Omar",
    "Hannah", "Peter", "Yuki", "Ana", "David", "Fatima", "George", "Elena", "Tom", "Nora", "Ivan",
    "Grace", "Hugo", "Leila", "Marco", "Nina", "Oscar", "Rosa", "Samuel", "Tara", "Victor", "Wendy",
    "Anders", "Bella", "Carlos", "Diana", "Emil", "Frida", "Henrik", "Isabel", "Jonas", "Karin",
    "Liam", "Mina", "Noah", "Petra", "Ravi", "Sara", "Tim", "Ulla", "Vera", "William", "Zoë",
    "Alice", "Bob", "Eve", "Mallory", "John", "Jane", "Anna", "Max", "Julia", "Felix", "José",
)  # fmt: skip
SURNAMES = (
    "Dahl", "Ruiz", "Meyer", "Smith", "Jones", "Novak", "Khan", "Patel", "Larsen", "Rossi",
    "Silva", "Kim", "Tanaka", "Müller", "Schmidt", "Dubois", "Garcia", "Lopez", "Ivanov",
    "Petrov", "Okafor", "Mensah", "Haddad", "Cohen", "Berg", "Lind", "Holm", "Virtanen",
    "Kowalski", "Horvat", "Popescu", "Brown", "Taylor", "Walker", "Young", "King", "Hill",
    "Baker", "Carter", "Cooper", "Reed", "Morgan", "Bell", "Murphy", "Byrne", "Costa", "Santos",
    "Moreau", "Fischer", "Weber", "Wagner", "Becker", "Hansen", "Nilsen", "Sato", "Suzuki",
    "Nguyen", "Tran", "Wang", "Li", "Doe", "Green",
)  # fmt: skip
DEPARTMENTS = (
    "billing", "shipping", "legal", "sales", "finance", "design", "research", "security", "travel",
    "support", "marketing", "payroll", "training", "purchasing", "planning", "quality", "printing",
    "logistics", "export", "import", "claims", "recruiting", "audit", "press", "warehouse",
    "returns", "repairs", "night", "kitchen", "garden", "data", "mobile", "network", "hardware",
    "software", "packing", "testing", "translation", "accounts", "customs",
)  # fmt: skip
ROOMS = (
    "Aspen", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine",
    "Rowan", "Spruce", "Willow", "Alder", "Beech", "Cypress", "Linden", "Poplar", "Yew",
)  # fmt: skip
PROJECTS = (
    "Heron", "Falcon", "Otter", "Badger", "Lynx", "Marten", "Osprey", "Plover", "Raven", "Salmon",
    "Sparrow", "Tern", "Walrus", "Bison", "Condor", "Dolphin", "Eagle", "Ferret", "Gazelle", "Ibex",
)  # fmt: skip
MACHINES = (
    "Atlas", "Borealis", "Castor", "Draco", "Electra", "Gemini", "Helios", "Io", "Juno", "Kepler",
    "Lyra", "Mimas", "Nova", "Orion", "Pollux", "Rhea", "Sirius", "Titan", "Vega", "Zeus",
)  # fmt: skip
TRADES = (
    "Logistics", "Foods", "Textiles", "Marine", "Energy", "Optics", "Travel", "Systems", "Paper",
    "Tools", "Media", "Glass", "Robotics", "Farms", "Group", "Works", "Partners", "Labs",
)  # fmt: skip

ONSETS = (
    "b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "qu",
    "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "z", "",
)  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ou", "y", "ö", "é")
CODAS = ("", "", "", "n", "r", "l", "s", "m", "t", "k", "nd", "rt", "x", "ck", "rg", "lm")
CITY_ENDINGS = ("", "", "", "burg", "stad", "ville", "ton", "ford", "haven", "mouth", "berg", "ia")


def is_held_out(spelling: str) -> bool:
    """Return whether a made-up spelling was held out of the training."""
    return zlib.crc32(spelling.encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class NameSource:
    """A source of random choices. Its made-up spellings do not occur in the model's training."""

    rng: random.Random

    def pick(self, options: Sequence[Option]) -> Option:
        """Pick one of `options`, with equal probability."""
        return options[int(self.rng.random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """Draw a whole number in [low, high]."""
        return low + int(self.rng.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def unseen(self, make: Callable[[], str]) -> str:
        """Call `make` until its spelling was held out of the training."""
        while True:
            spelling = make()
            if is_held_out(spelling):
                return spelling


Draw: TypeAlias = Callable[[NameSource], str]


def _syllables(source: NameSource, count: int) -> str:
    parts = [source.pick(ONSETS) + source.pick(VOWELS) for _ in range(count)]
    return "".join(parts) + source.pick(CODAS)


def made_up_word(source: NameSource) -> str:
    """Draw a made-up lower-case word."""
    return source.unseen(lambda: _syllables(source, source.number(2, 3)))


def made_up_name(source: NameSource) -> str:
    """Draw a made-up capitalised name."""
    return source.unseen(lambda: _syllables(source, source.number(1, 3)).capitalize())


def _real_or(source: NameSource, real: Sequence[str], share: float) -> str:
    return source.pick(real) if source.chance(share) else made_up_name(source)


def real_or_made_up(real: Sequence[str]) -> Draw:
    """Return a function that draws a name from `real` with probability 2/5, or makes one up."""
    return lambda source: _real_or(source, real, 0.4)


def city(source: NameSource) -> str:
    """Draw a city, real or made up."""
    if source.chance(0.5):
        return source.pick(CITIES)
    return source.unseen(
        lambda: _syllables(source, source.number(1, 2)).capitalize() + source.pick(CITY_ENDINGS)
    )


def person(source: NameSource) -> str:
    """Draw a first name and a surname, each real or made up."""
    return f"{_real_or(source, FIRST_NAMES, 0.5)} {_real_or(source, SURNAMES, 0.5)}"


def company(source: NameSource) -> str:
    """Draw a made-up company, often with its trade."""
    name = made_up_name(source)
    return f"{name} {source.pick(TRADES)}" if source.chance(0.6) else name


def product(source: NameSource) -> str:
    """Draw a made-up product, often with a model number."""
    name = made_up_name(source)
    if source.chance(0.4):
        return f"{name} {source.number(1, 99)}{source.pick(('', '0', '00'))}"
    return f"{name} {source.pick('XSTQZ')}" if source.chance(0.2) else name
