"""The division of a grammar into terminals.

llguidance's lexer splits a text into terminals, each as long as possible, and never backtracks. No
terminal may therefore be able to continue into the text that follows it: `[a-z]+` before `"ing"`
would also take the letters `ing`. Splitting everything into single characters would be correct, but
slow. Therefore each part of a rule without recursion first becomes one terminal. Terminals that
could continue past their end are split, until there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby

from engine.grammars.syntax.automaton import MANY, Automaton, TooMuch, first_bytes
from engine.grammars.syntax.expression import (
    All,
    AnyOf,
    Chars,
    Expression,
    Foreign,
    Repeat,
    Rule,
    Terminal,
    UnsoundGrammar,
    in_order,
    one_of,
    parts_of,
    walk,
)
from engine.grammars.syntax.recursion import regular_rules, simplified, with_loops

# Maximum steps of the automaton; after these, every character becomes a terminal.
MAX_STEPS = 200_000
MAX_SIZE = 300  # maximum number of characters in one terminal
_FOREIGN = 256  # number of bits that stand for bytes; the bits for foreign values follow

Rules = Mapping[str, Expression]


class Terminals:
    """The rules of a grammar, written with terminals, and the expression of each terminal."""

    def __init__(self, rules: Rules, root: str) -> None:
        """Divide rules into terminals.

        Raises UnsoundGrammar if the end of a text and the start of a foreign value are ambiguous.
        """
        loops = {name: with_loops(name, body) for name, body in rules.items()}
        self.texts = simplified(loops)
        self.rules: dict[str, Expression] = {}
        self.wholes: list[Expression] = []
        self.apart: dict[int, Expression] = {}  # split terminal -> expression of the new terminals
        self._regular = regular_rules(self.texts)
        self._sizes: dict[str, int] = {}
        self._use(root)
        if root in self._regular:  # the grammar is a single terminal, so nothing can follow it
            return
        try:
            self._take_apart(Automaton(self.texts, MAX_STEPS))
        except TooMuch:
            self._take_all_apart()

    def _use(self, name: str) -> None:
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name not in self.rules:
                self.rules[name] = self._shaped(self.texts[name])
                waiting.extend(one.name for one in walk(self.rules[name]) if isinstance(one, Rule))

    def _shaped(self, part: Expression) -> Expression:
        if self._is_regular(part):
            return self._terminal(part)
        match part:
            case All(parts):
                return in_order([*self._runs(parts)])
            case AnyOf(parts):
                regular = [one for one in parts if self._is_regular(one)]
                others = [self._shaped(one) for one in parts if not self._is_regular(one)]
                return one_of([*others, *([self._terminal(one_of(regular))] if regular else [])])
            case Repeat(inner, least, most):
                return Repeat(self._shaped(inner), least, most)
        return part

    def _runs(self, parts: Iterable[Expression]) -> Iterator[Expression]:
        run: list[Expression] = []
        for part in parts:
            if self._is_regular(part):
                run.append(part)
                continue
            if run:
                yield self._terminal(in_order(run))
            run = []
            yield self._shaped(part)
        if run:
            yield self._terminal(in_order(run))

    def _is_regular(self, part: Expression) -> bool:
        for one in walk(part):
            if isinstance(one, Foreign) or (
                isinstance(one, Rule) and one.name not in self._regular
            ):
                return False
        return True

    def _size(self, part: Expression) -> int:
        match part:
            case Rule(name):
                if name not in self._sizes:
                    self._sizes[name] = self._size(self.texts[name])
                return self._sizes[name]
            case Repeat(inner, _, int(most)) if most < MANY:
                return self._size(inner) * most
        return sum(map(self._size, parts_of(part))) or 1

    def _terminal(self, whole: Expression) -> Expression:
        self.wholes.append(whole)
        return Terminal(len(self.wholes) - 1)

    def _take_apart(self, automaton: Automaton) -> None:
        num_known = 0
        while True:
            while num_known < len(self.wholes):
                if self._size(self.wholes[num_known]) > MAX_SIZE:
                    self._split(num_known)
                else:
                    automaton.add(num_known, self.wholes[num_known])
                num_known += 1
            followed_by = _Followers(self, automaton).of_terminals()
            self._refuse_ambiguous(automaton, followed_by)
            texts = {number: bits & ((1 << _FOREIGN) - 1) for number, bits in followed_by.items()}
            longer = defaultdict[int, set[int]](set)
            for _, number, part in automaton.too_long(texts):
                longer[number].add(part)
            if not longer:
                return
            for number, parts in longer.items():
                self._split(number, parts)

    def _refuse_ambiguous(self, automaton: Automaton, followed_by: Mapping[int, int]) -> None:
        foreign = {number: bits >> _FOREIGN for number, bits in followed_by.items()}
        if any(foreign.values()) and any(
            ended == other for ended, other, _ in automaton.too_long(foreign)
        ):
            raise UnsoundGrammar("a text could go on where a JSON value may begin")

    def _take_all_apart(self) -> None:
        number = 0
        while number < len(self.wholes):  # the loop body appends to the list
            if not isinstance(self.wholes[number], Chars):
                self._split(number)
            number += 1

    def _split(self, number: int, at: Collection[int] | None = None) -> None:
        if at is None:
            at = range(len(parts_of(self.wholes[number])))
        match self.wholes[number]:
            case Rule(name):
                self.apart[number] = Rule(name)
                self._use(name)
            case All(parts):
                placed = ((n if n in at else -1, part) for n, part in enumerate(parts))
                runs = groupby(placed, lambda one: one[0])
                found = [self._terminal(in_order(part for _, part in run)) for _, run in runs]
                self.apart[number] = All(tuple(found))
            case AnyOf(parts):
                others = [part for n, part in enumerate(parts) if n not in at]
                alone = [part for n, part in enumerate(parts) if n in at]
                alone += [one_of(others)] if others else []
                self.apart[number] = AnyOf(tuple(map(self._terminal, alone)))
            case Repeat(part, least, most):
                self.apart[number] = Repeat(self._terminal(part), least, most)


class _Followers:
    """The first bytes, and the foreign values, that may follow each terminal, as bit sets."""

    def __init__(self, terminals: Terminals, automaton: Automaton) -> None:
        self._terminals = terminals
        self._automaton = automaton
        # rule -> (first bytes of its texts, whether a text may be empty)
        self._begins: dict[str, tuple[int, bool]] = {}
        self._behind: dict[str, int] = {}
        self._found: dict[int, int] = {}

    def of_terminals(self) -> dict[int, int]:
        rules = self._terminals.rules
        while self._begins != (begins := {name: self._begin(rules[name]) for name in rules}):
            self._begins = begins
        before = None
        while before != self._behind:
            before = dict(self._behind)
            for name, body in rules.items():
                self._see(body, self._behind.get(name, 0))
        return self._found

    def _begin(self, part: Expression) -> tuple[int, bool]:
        match part:
            case Terminal(number) if number in self._terminals.apart:
                return self._begin(self._terminals.apart[number])
            case Terminal(number):
                return self._automaton.beginnings(number), self._automaton.may_be_empty(number)
            case Rule(name):
                return self._begins.get(name, (0, False))
            case Foreign(_, first):
                return first_bytes(first) << _FOREIGN, False
            case All(parts):
                return self._begin_of(parts)
            case Repeat(inner, least):
                bits, may_be_empty = self._begin(inner)
                return bits, may_be_empty or not least
        found = [self._begin(one) for one in parts_of(part)]
        bits = 0
        for one, _ in found:
            bits |= one
        return bits, any(may_be_empty for _, may_be_empty in found)

    def _begin_of(self, parts: Iterable[Expression]) -> tuple[int, bool]:
        bits = 0
        for part in parts:
            more, may_be_empty = self._begin(part)
            bits |= more
            if not may_be_empty:
                return bits, False
        return bits, True

    def _see(self, part: Expression, behind: int) -> None:
        match part:
            case Terminal(number) if number in self._terminals.apart:
                self._see(self._terminals.apart[number], behind)
            case Terminal(number):
                self._found[number] = self._found.get(number, 0) | behind
            case Rule(name):
                self._behind[name] = self._behind.get(name, 0) | behind
            case All(parts):
                for one in reversed(parts):
                    self._see(one, behind)
                    bits, may_be_empty = self._begin(one)
                    behind = bits | behind if may_be_empty else bits
            case AnyOf(parts):
                for one in parts:
                    self._see(one, behind)
            case Repeat(inner, _, most):
                self._see(inner, behind if most == 1 else behind | self._begin(inner)[0])
