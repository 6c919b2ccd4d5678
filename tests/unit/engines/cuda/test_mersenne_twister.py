"""MT19937's recurrence, from which its jumps are computed."""

import re

import numpy as np

from tensorly_flycoo.engines.cuda.source import load_source


def read_exponents():
    """Read the exponents of the characteristic polynomial's terms, but for the highest."""
    found = re.search(
        r"int exponents\[\] = \{(.+?)\}", load_source("mersenne_twister.cu"), re.DOTALL
    )
    return [int(number) for number in found[1].split(",")]


def list_words(seed, num_states):
    """List NumPy's states one after the other, as the words of one sequence."""
    random = np.random.RandomState(seed)
    states = []
    for _ in range(num_states):
        random.random_sample(312)
        states.append(random.get_state(legacy=False)["state"]["key"])
    return np.concatenate(states)


def test_numpys_words_obey_the_characteristic_polynomial():
    words, degree, exponents = list_words(3, 35), 19937, read_exponents()
    for i in range(0, words.size - degree, 100):
        total = words[degree + i]
        for exponent in exponents:
            total ^= words[exponent + i]
        assert total == 0


def test_the_polynomial_is_sparse_where_squares_are_reduced():
    """The kernel reduces 16 words at once, which needs a gap below the highest term."""
    exponents = read_exponents()
    assert len(exponents) == 134
    assert 19937 - exponents[-1] >= 16 * 32 + 31
