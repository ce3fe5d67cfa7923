"""A small synthetic world of facts, for tests and for the proof on two CPU cores: one- and two-hop questions.

People have relations to each other ("The mother of Talo is Miren."). Nothing about the facts can be guessed, so a model
answers by searching or not at all; a two-hop question needs two searches, the second of which depends on the first's
result.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from viprl.errors import InvalidInputError
from viprl.tasks.search.passages import Passage
from viprl.tasks.search.questions import Question

RELATIONS = ("mother", "boss", "friend", "teacher", "doctor", "cousin")
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")


def names(count: int) -> list[str]:
    """Distinct two-syllable names, the same ones for every world: "Baba", "Babe", ..."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    if not 2 <= count <= len(syllables) ** 2:
        raise InvalidInputError(f"2 <= count <= {len(syllables) ** 2} must hold, but got {count}")
    pairs = [(first + second).capitalize() for first in syllables for second in syllables]
    random.Random("names").shuffle(pairs)
    return pairs[:count]


@dataclass(frozen=True)
class FactWorld:
    """Every person has one relative of each kind, drawn at random.

    Args:
        seed: which facts hold.
        people: number of persons.
        relations: kinds of relation.
    """

    seed: int = 0
    people: int = 48
    relations: tuple[str, ...] = RELATIONS[:4]

    @cached_property
    def persons(self) -> list[str]:
        return names(self.people)

    @cached_property
    def facts(self) -> dict[tuple[str, str], str]:
        """(relation, person) -> relative, never the person."""
        rng = random.Random(f"world/{self.seed}")
        return {
            (relation, person): rng.choice([other for other in self.persons if other != person])
            for relation in self.relations
            for person in self.persons
        }

    @cached_property
    def passages(self) -> list[Passage]:
        """One passage for each fact, under its subject's name."""
        return [self.passage(relation, person) for relation, person in self.facts]

    def passage(self, relation: str, person: str) -> Passage:
        relative = self.facts[relation, person]
        return Passage(title=person, text=f"The {relation} of {person} is {relative}.")

    def question(self, chain: Sequence[str], person: str) -> Question:
        """The question along `chain`, first relation first: ("mother", "boss") = the boss of the mother of `person`."""
        supporting = []
        here = person
        for relation in chain:
            supporting.append(self.passage(relation, here).id)
            here = self.facts[relation, here]
        phrase = "".join(f" the {relation} of" for relation in reversed(chain))
        return Question(
            id="-".join((*chain, person)),
            question=f"Who is{phrase} {person}?",
            answers=(here,),
            supporting=tuple(supporting),
            hops=tuple(supporting),
        )

    def questions(self, hops: int, *, seed: int = 0) -> list[Question]:
        """All questions of that many hops, shuffled."""
        chains: list[tuple[str, ...]] = [()]
        for _ in range(hops):
            chains = [(*chain, relation) for chain in chains for relation in self.relations]
        found = [self.question(chain, person) for chain in chains for person in self.persons]
        random.Random(f"questions/{seed}").shuffle(found)
        return found

    def split(
        self, n_train: int, n_test: int, *, two_hop_share: float = 0.75, seed: int = 0
    ) -> tuple[list[Question], list[Question]]:
        """Disjoint training and test questions with the same share of two-hop questions.

        Raises:
            InvalidInputError: the world has too few questions.
        """
        train: list[Question] = []
        test: list[Question] = []
        for hops, share in ((2, two_hop_share), (1, 1 - two_hop_share)):
            pool = self.questions(hops, seed=seed)
            a, b = round(n_train * share), round(n_test * share)
            if a + b > len(pool):
                raise InvalidInputError(f"{a + b} questions of {hops} hops are needed, but the world has {len(pool)}")
            train += pool[:a]
            test += pool[a : a + b]
        random.Random(f"order/{seed}").shuffle(train)
        return train, test


@dataclass(frozen=True)
class Mistakes:
    """How a teacher errs; each is a probability at a question of medium difficulty.

    Attributes:
        guess: answers at once with a random name.
        stop_early: answers a two-hop question after one search.
        wrong_relation: the second search asks for another relation.
        misread: answers with another name of the last result.
        broken_call: writes a call that cannot be read.
    """

    guess: float = 0.15
    stop_early: float = 0.25
    wrong_relation: float = 0.15
    misread: float = 0.05
    broken_call: float = 0.05


def difficulty(question: Question) -> float:
    """Factor on the teacher's mistakes, from 0.4 to 1.9, by the question's last relation: prompts differ in p."""
    relation = question.id.split("-")[-2]
    return 0.4 + 1.5 * (RELATIONS.index(relation) % 4) / 3


def demonstrate(question: Question, world: FactWorld, mistakes: Mistakes | None, rng: random.Random) -> list[str]:
    """The teacher's turns: calls, then the answer. The caller runs the calls and inserts the results.

    Args:
        mistakes: None = a perfect teacher.
    """
    *chain, person = question.id.split("-")
    factor = difficulty(question)

    def errs(rate: float) -> bool:
        return mistakes is not None and rng.random() < min(rate * factor, 0.9)

    if mistakes is not None and errs(mistakes.guess):
        return [_answer(rng.choice(world.persons))]
    turns: list[str] = []
    here = person
    for hop, relation in enumerate(chain):
        if hop and mistakes is not None and errs(mistakes.stop_early):
            break
        asked = relation
        if hop and mistakes is not None and errs(mistakes.wrong_relation):
            asked = rng.choice(world.relations)
        broken = mistakes is not None and errs(mistakes.broken_call)
        turns.append(_call(asked, here, broken))
        if broken:
            turns.append(_call(asked, here, False))
        here = world.facts[asked, here]
    if mistakes is not None and errs(mistakes.misread):
        here = rng.choice(world.persons)
    return [*turns, _answer(here)]


def _call(relation: str, person: str, broken: bool) -> str:
    query = f"{relation} of {person}"
    if broken:
        return f"<tool_call>\nsearch {query}\n</tool_call>"
    return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


def _answer(person: str) -> str:
    return f"\\boxed{{ {person}}}"
