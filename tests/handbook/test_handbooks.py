from __future__ import annotations

from handbook.texts.facts import UNKNOWN
from handbook.texts.handbooks import Handbook, make_handbook, make_messages, make_questions

SEEDS = range(60)


def many() -> list[Handbook]:
    return [make_handbook(seed, facts=5 + seed) for seed in SEEDS]


def test_the_same_seed_writes_the_same_handbook_and_questions() -> None:
    first, again = make_handbook(3), make_handbook(3)
    assert first == again
    assert make_questions(first, 5, 10) == make_questions(again, 5, 10)


def test_another_seed_writes_another_handbook() -> None:
    assert len({make_handbook(seed).text for seed in SEEDS}) == len(SEEDS)


def test_a_handbook_states_as_many_facts_as_asked() -> None:
    assert [len(make_handbook(1, facts=n).facts) for n in (0, 1, 3, 40, 300)] == [0, 1, 3, 40, 300]


def test_every_fact_stands_in_the_text_with_its_subject_and_value() -> None:
    for handbook in many():
        for fact in handbook.facts:
            assert fact.sentence in handbook.text
            assert fact.value in fact.sentence
            assert fact.subject.name.lower() in fact.sentence.lower()


def test_no_two_facts_answer_the_same_question() -> None:
    for handbook in many():
        assert len(handbook.keys) == len(handbook.facts)


def test_an_answer_is_a_stated_value_or_says_that_there_is_none() -> None:
    kinds = set()
    for handbook in many():
        stated = {fact.value for fact in handbook.facts}
        for question in make_questions(handbook, 1, 20):
            kinds.add(question.kind)
            if question.answer == UNKNOWN:
                assert question.kind == "unknown"
            else:
                assert question.answer in stated
    assert {"unknown", "free", "support code", "manager"} <= kinds


def test_about_one_question_in_seven_has_no_answer() -> None:
    questions = [q for handbook in many() for q in make_questions(handbook, 2, 40)]
    share = sum(q.answer == UNKNOWN for q in questions) / len(questions)
    assert 0.12 < share < 0.18


def test_an_empty_handbook_answers_nothing() -> None:
    handbook = make_handbook(2, facts=0)
    assert {q.answer for q in make_questions(handbook, 0, 30)} == {UNKNOWN}


def test_messages_alternate_and_end_with_the_open_question() -> None:
    handbook = make_handbook(1)
    questions = make_questions(handbook, 1, 3)
    messages = make_messages(handbook, questions)
    assert [m["role"] for m in messages] == ["system"] + ["user", "assistant"] * 2 + ["user"]
    assert messages[0]["content"] == handbook.text
    assert messages[-1]["content"] == questions[-1].text
    assert make_messages(handbook, ()) == messages[:1]
