"""What stands around an engine's methods: the method still runs, and is stood around once in a class."""

from __future__ import annotations

from tidegate_engines import around


class Engine:
    """Has a method."""

    def step(self, by: int) -> int:
        return by


class Kind(Engine):
    """Inherits it."""


def one_more(original, *args):
    """What stands around it."""
    return original(*args) + 1


def made(kind: type = Engine):
    """A class of its own for each test."""
    return type("Made", (kind,), dict(vars(kind)))


def test_a_class_is_stood_around_once_however_often_it_is_asked_for():
    kind = made()
    engine = kind()
    for _ in range(3):
        around.of_class(kind, "step", one_more)
    assert engine.step(5) == kind().step(5) == 6


def test_what_a_class_inherits_is_stood_around_there_alone():
    around.of_class(kind := made(Kind), "step", one_more)
    assert kind().step(5) == 6 and Kind().step(5) == Engine().step(5) == 5


def test_an_instance_is_stood_around_alone():
    kind = made()
    engine, other = kind(), kind()
    around.of_instance(engine, "step", one_more)
    assert (engine.step(5), other.step(5)) == (6, 5)


def test_a_method_keeps_its_name_and_its_arguments():
    around.of_class(kind := made(), "step", lambda original, self, *args, **kwargs: [args, kwargs])
    assert kind().step(5, by=6) == [(5,), {"by": 6}]
    assert kind.step.__name__ == "step"
