"""Print the section of CHANGELOG.md on a version: python .ci/release_notes.py 0.2.0"""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def extract_notes(text, version):
    """Return the section of a released version, without its title."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, notes = section.partition("\n")
        name, _, date = title.partition(" / ")
        if name == version:
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
                sys.exit(f"CHANGELOG.md: version {version} has the date {date!r}, expected one")
            return notes.strip() + "\n"
    sys.exit(f"CHANGELOG.md has no version {version}")


if __name__ == "__main__":
    print(extract_notes(CHANGELOG.read_text(), sys.argv[1]), end="")
