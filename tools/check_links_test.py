#!/usr/bin/env python3
"""Behaviour of check_links.py, on small trees made for the purpose."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import check_links

TREE = {
    "src/comm/ring.cc": 'throw Error(fmt::format("rank {} did "\n  "not come", rank));\n',
    "src/comm/ring.h": "",
    "tests/process/ring_test.cc": "TEST(Ring, TurnsRound) {}\n",
    "docs/other.md": "# One\n\n## Two words, `code`\n",
}


class CheckLinks(unittest.TestCase):
    def problems(self, text: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name, content in {**TREE, "docs/page.md": text}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            return check_links.check(root)

    def test_takes_what_is_there(self):
        text = "[a](other.md) [b](other.md#two-words-code) `src/comm/ring.cc` comm/ring.h tests/*/ring_test.cc\n"
        text += "process/ring_test.cc: Ring.TurnsRound\n\n| message |\n|---|\n| `did not ... come` |\n"
        self.assertEqual(self.problems(text.replace("not ... come", "not come")), [])
        self.assertEqual(self.problems("| message |\n|---|\n| `rank ... come` |\n"), [])

    def test_names_file_and_line_of_a_dead_link(self):
        self.assertEqual(self.problems("\n[a](gone.md)"), ["docs/page.md:2: the link leads to 'gone.md', and there is no such file"])
        self.assertIn("no such heading", self.problems("[a](other.md#three)")[0])

    def test_a_path_or_test_that_is_not_there(self):
        self.assertIn("there is no 'src/comm/star.cc'", self.problems("see `src/comm/star.cc`")[0])
        self.assertIn("there is no 'comm/star.h'", self.problems("see comm/star.h")[0])
        self.assertIn("has no test 'Ring.Stops'", self.problems("process/ring_test.cc: Ring.Stops")[0])

    def test_a_message_that_the_program_does_not_say(self):
        self.assertIn("says 'did not go'", self.problems("| message |\n|---|\n| `did not go` |\n")[0])


if __name__ == "__main__":
    unittest.main()
