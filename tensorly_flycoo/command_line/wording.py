"""Messages of Python functions, in the words of the command line."""

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator

#: Wording of errors from Python functions and pyarrow, and how the command line puts it.
_SPELLINGS = {
    "Expected 1 columns": "expected 1 column (or give --sep ';')",
    "df has": "the file has",
    "expected numbers; convert it, as by "
    'pandas.to_numeric(column, errors="coerce"), which makes nan of what is no number': (
        "expected numbers (or empty: --missing-text NA)"
    ),
    "init='random'": "--init random",
    'missing="drop"': "--missing drop",
    'missing="raise"': "--missing raise",
    "pass missing=[": "read it in Python with missing=[",
    ', or missing="unknown" if cells without a row are': "",
    'aggregate="sum"': "--aggregate sum",
    'l2_reg="validation"': "no --l2-reg",
    "smaller l2_reg": "smaller --l2-reg",
    "biases=True": "--biases",
    "cp_tensor was": "the model was",
    "cp_tensor is": "the model is",
    "x_new has": "the file has",
    "cannot insert prediction, already exists": "a mode is called 'prediction', as the result is",
    ", or extend the labels, those of a model by its `extend`": " (new ones need another fit)",
    "these are dates: convert the text, as by pandas.to_datetime": "these are dates",
}

#: What only helps in Python: pairs of arrays, and what to call.
_ONLY_IN_PYTHON = re.compile(r"; pass the pair .*|: call [\w.]+\(path\)$")


def spell(text: str) -> str:
    """Return a message with options of the command line in place of arguments in Python.

    >>> spell('pass aggregate="sum" if that is meant')
    'pass --aggregate sum if that is meant'
    """
    text = _ONLY_IN_PYTHON.sub("", text)
    for in_python, here in _SPELLINGS.items():
        text = text.replace(in_python, here)
    return text


@contextlib.contextmanager
def spell_warnings() -> Iterator[None]:
    """Turn the warnings of a block into lines on standard error, at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                print("warning:", spell(str(warning.message)), file=sys.stderr)
