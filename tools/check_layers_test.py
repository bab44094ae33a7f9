#!/usr/bin/env python3
"""Behaviour of check_layers.py, on small trees made for the purpose."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import check_layers

TABLE = """# Architecture
## Rooms
| room | includes | what it holds |
|---|---|---|
| base | | errors |
| comm | base | collectives |
"""
CMAKE = "tessera_room(base)\ntessera_room(comm DEPENDS base LINK x::y)\n"


class CheckLayers(unittest.TestCase):
    def problems(self, files: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name, text in {"docs/architecture.md": TABLE, "CMakeLists.txt": CMAKE, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check_layers.check(root)

    def test_accepts_what_the_table_allows(self):
        self.assertEqual(self.problems({"src/comm/a.cc": '#include "comm/a.h"\n#include "tessera/base/error.h"\n#include <vector>\n'}), [])

    def test_names_file_and_line_of_an_include_upwards(self):
        found = self.problems({"include/tessera/base/a.h": '\n#include "tessera/comm/b.h"\n'})
        self.assertEqual(len(found), 1)
        self.assertIn("include/tessera/base/a.h:2: 'base' must not include 'comm'", found[0])

    def test_public_headers_need_no_private_ones_and_are_in_the_umbrella(self):
        found = self.problems(
            {
                "include/tessera/tessera.h": '#include "tessera/base/a.h"\n',
                "include/tessera/base/a.h": '#include "base/b.h"\n',
                "include/tessera/base/c.h": "int x;\n",
            }
        )
        self.assertEqual(len(found), 2)
        self.assertIn("include/tessera/base/a.h:1: a public header includes a private one", found[0])
        self.assertIn("tessera/base/c.h is missing", found[1])

    def test_reports_a_dependency_that_the_table_lacks(self):
        found = self.problems({"CMakeLists.txt": "tessera_room(base DEPENDS comm)\ntessera_room(comm DEPENDS base)\n"})
        self.assertIn("'base' depends on 'comm'", found[0])

    def test_reports_a_room_that_only_one_side_knows(self):
        found = self.problems({"CMakeLists.txt": CMAKE + "tessera_room(io DEPENDS base)\n", "src/io/a.cc": "int x;\n"})
        self.assertTrue(any("docs/architecture.md: room 'io'" in problem for problem in found))
        self.assertTrue(any("'io' is no room" in problem for problem in found))

    def test_reports_long_files_but_not_long_tests(self):
        text = "int x;\n" * 501
        self.assertEqual(len(self.problems({"src/comm/a.cc": text, "tests/unit/comm/a.cc": text})), 1)

    def test_reports_files_opened_for_reading_past_the_one_function(self):
        ways = ["std::ifstream in(path);", "int d = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);", 'std::fopen(path, "rb");', "parser.load(path);"]
        found = self.problems({"src/comm/a.cc": "\n".join(ways)})
        self.assertEqual([problem.split(" ")[0] for problem in found], [f"src/comm/a.cc:{n}:" for n in range(1, len(ways) + 1)])

    def test_accepts_files_of_the_system_folders_and_writing(self):
        others = ['std::ifstream in("/proc/meminfo");', "::open(folder, O_RDONLY | O_DIRECTORY);", 'std::fopen(path, "wb");',
                  "::open(path, O_WRONLY | O_CREAT);", "std::ofstream out(path);", "file.open(flags);"]
        self.assertEqual(self.problems({"src/comm/a.cc": "\n".join(others)}), [])

    def test_reports_json_written_past_the_one_function(self):
        found = self.problems({"src/comm/a.cc": "a.dump();\nb.dump (2);\njson_text(a); dump(a);\n", "src/base/json_text.cc": "a.dump();\n"})
        self.assertEqual([problem.split(" ")[0] for problem in found], ["src/comm/a.cc:1:", "src/comm/a.cc:2:"])

    def test_reports_paths_outside_the_project(self):
        outside = ["/ho" "me/me/x", "../sha" "red/data", "(/wo" "rk/x)"]
        self.assertEqual(len(self.problems({"README.md": "\n".join(outside)})), 3)
        self.assertEqual(self.problems({"README.md": "src/work/x, $HOME/x, build/root/x, /workspace"}), [])


if __name__ == "__main__":
    unittest.main()
