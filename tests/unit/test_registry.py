"""Classes by name: the package's own are imported late, a user's never take another's name."""

import dataclasses

import pytest

from vit_jax.errors import UserError
from vit_jax.registry import Registry, is_plain_name, outside


class Animal: ...


def animal(module, name="Cat"):
    """A dataclass of this module and name."""
    made = dataclasses.make_dataclass(name, [("legs", int, 4)], bases=(Animal,))
    made.__module__ = module
    return made


@pytest.fixture
def registry(monkeypatch):
    """A registry whose class `cat` is added by the import of its module."""
    registry = Registry("animal", Animal, "legs", {"cat": "zoo.cats"})

    def import_module(name):
        assert name == "zoo.cats"
        registry.add("cat", animal(name))

    monkeypatch.setattr("importlib.import_module", import_module)
    return registry


def test_an_own_class_is_listed_before_its_module_is_imported(registry):
    assert registry.names() == ["cat"] and not registry
    assert registry.find("cat", "pet").__module__ == "zoo.cats"
    assert list(registry) == ["cat"]


def test_a_class_is_replaced_by_the_next_one_of_its_place_only(registry):
    for _ in range(2):
        dog = registry.add("dog", animal("mine", "Dog"))
    assert registry.find("dog", "pet") is dog
    for name, other in (("dog", animal("other", "Dog")), ("cat", animal("mine"))):
        with pytest.raises(ValueError, match=f"the animal name '{name}' is taken already"):
            registry.add(name, other)


def test_a_class_inherits_from_the_base_and_has_fields(registry):
    with pytest.raises(ValueError, match=r"'cow' must be a subclass of tests\..*Animal"):
        registry.add("cow", int)
    with pytest.raises(ValueError, match="'cow': put @dataclass.*first field is `legs`"):
        registry.add("cow", Animal)


def test_an_unknown_name_is_one_sentence(registry):
    registry.add("dog", animal("mine", "Dog"))
    with pytest.raises(UserError, match=r"pet = 'dgo' is unknown; did you mean 'dog'\?") as error:
        registry.find("dgo", "pet")
    assert "use one of cat, dog" in str(error.value)


def test_only_modules_outside_the_package_are_named(registry):
    registry.add("dog", animal("mine.dogs", "Dog"))
    registry.add("wolf", animal("mine.dogs", "Wolf"))
    registry.add("hen", animal("vit_jax.zoo", "Hen"))
    assert registry.outside_modules(["dog", "hen", "wolf"], "pets") == ("mine.dogs",)
    assert outside(["vit_jax", "vit_jax_mine", "vit_jax.data"]) == ("vit_jax_mine",)


@pytest.mark.parametrize(
    ("text", "plain"), [("a-b_1", True), ("", False), ("_-", False), ("a b", False), ("a:b", False)]
)
def test_a_plain_name_has_letters_digits_and_two_signs(text, plain):
    assert is_plain_name(text) is plain
