"""A clone of the repository shows every picture of README."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_shows_files_of_the_repository():
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"!\[[^]]*\]\(([^)\s]+)|<img[^>]+src=\"([^\"]+)", text)
    pictures = {first or second for first, second in named}
    command = ["git", "ls-files", "-z"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    local = {path for path in pictures if not path.startswith("https://")}
    assert local, "README shows no picture"
    assert local <= set(process.stdout.split("\0"))
