#!/usr/bin/env python3
"""Behaviour of check_commands.py: what it reads from documents, and what it finds in them with the program.

    tools/check_commands_test.py TESSERA_PROGRAM
"""

import sys
import tempfile
import unittest
from pathlib import Path

import check_commands
from check_commands import Document, Program

PAGE = """# Page

Say `tessera estimate MODEL`, or `--lora_r 8`.

    tessera env | head -n 3          # a comment
    tessera tokenize --tokenizer BASE \\
        < rows.jsonl
    sample output of tessera env

```yaml
# file: run.yaml
max_steps: 2
```
"""


class CheckCommands(unittest.TestCase):
    program: Program

    def document(self, text: str) -> Document:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(text)
            return Document(page, Path(folder))

    def problems(self, *lines: str) -> list[str]:
        return check_commands.check(self.program, [self.document("\n".join(lines))])[0]

    def test_reads_blocks_sentences_flags_and_files(self):
        page = self.document(PAGE)
        self.assertEqual([(5, "tessera env | head -n 3", False), (6, "tessera tokenize --tokenizer BASE < rows.jsonl", False)], page.commands[:2])
        self.assertEqual(page.commands[2:], [(3, "tessera estimate MODEL", True)])
        self.assertEqual(page.flags, [(3, "--lora_r")])
        self.assertEqual(page.files, {"run.yaml": "# file: run.yaml\nmax_steps: 2\n"})

    def test_right_commands_pass_and_wrong_ones_are_named(self):
        found = self.problems(
            "    tessera env",
            "    tessera inspect out",
            "    tessera inspect nowhere",
            "    tessera sft --lora_rr 8 ...",
            "Say `tessera sft --learning_rate fast` or `tessera launch --cpu --num_processes 2 sft --max_step 1`.",
            "Or `tessera trainn --x 1`, or `--no_such_flag`.",
        )
        wanted = ["page.md:3: 'tessera inspect nowhere': exit code", "page.md:4: ", "page.md:5: ", "page.md:5: ", "page.md:6: ", "page.md:6: no command has the flag --no_such_flag"]
        self.assertEqual(len(found), len(wanted), found)
        for problem, start in zip(found, wanted):
            self.assertTrue(problem.startswith(start), problem)
        for part, problem in zip(["unknown flag --lora_rr", "--learning_rate expects a number", "unknown flag --max_step", "no command 'trainn'"], found[1:5]):
            self.assertIn(part, problem)


if __name__ == "__main__":
    CheckCommands.program = Program(sys.argv.pop(1))
    unittest.main()
