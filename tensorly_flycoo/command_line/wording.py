"""Messages of Python functions, in the words of the command line."""

#: Wording of errors from Python functions and pyarrow, and how the command line puts it.
_SPELLINGS = {
    "Expected 1 columns": "expected 1 column (or give --sep ';')",
    "df has": "the file has",
    "text, expected numbers": "text, expected numbers (or empty: --missing-text NA)",
    "init='random'": "--init random",
    'missing="drop"': "--missing drop",
    ', or missing="unknown" if cells without a row are': "",
    'aggregate="sum"': "--aggregate sum",
}


def spell(text: str) -> str:
    """Return a message with options of the command line in place of arguments in Python.

    >>> spell('pass aggregate="sum" if that is meant')
    'pass --aggregate sum if that is meant'
    """
    for in_python, here in _SPELLINGS.items():
        text = text.replace(in_python, here)
    return text
