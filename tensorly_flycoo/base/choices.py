"""What a function such as `set_device` returns: its choice holds until it is restored."""

from collections.abc import Callable
from typing import final


@final
class Choice:
    """A choice for the whole process: leaving its ``with`` block restores the previous one."""

    def __init__(self, text: str, restore: Callable[[], None]) -> None:
        self._text = text
        self._restore = restore

    def __repr__(self) -> str:
        return f"<{self._text}>"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self._restore()
