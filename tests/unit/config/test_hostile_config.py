"""Whatever value a key is given, it is taken or refused in one short sentence."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.folders import CONFIGS
from vit_jax.config import flatten, load_config
from vit_jax.config.schema import KEYS
from vit_jax.errors import UserError

CONFIG = CONFIGS / "digits.py"
TEXTS = (
    *("nan", "-0.0", "1e400", "5e-324", "0x10", "1_000", "٣", "\0", "\ud800", "(((", "[" * 500),
    *(
        "((1,),)",
        "{1: {2: 3}}",
        "10 epochs",
        "5%",
        "1e9 epochs, at most 5%",
        "(('(', 1),)",
        "a" * 5000,
    ),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 10**400, -1])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(TEXTS)
    | st.binary(max_size=3)
    | st.complex_numbers()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEY = st.sampled_from([*KEYS, "model.depth", "model.image_size", "model", "lr", "data.x", ""])


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(KEY, VALUES), min_size=1, max_size=3))
def test_a_configuration_is_taken_or_refused_in_a_sentence(overrides):
    try:
        config = load_config(CONFIG, overrides)
    except UserError as error:
        assert len(str(error)) < 3000
    else:
        for path, value in flatten(config):
            if path in KEYS and value is not None:
                assert KEYS[path].allowed.convert(value) == value
