#!/usr/bin/env python3
"""Holds what documents point at against the tree; prints each that is not there and exits 1.

 - links to files and headings of the project: [text](../file.md#heading);
 - paths: `src/...`, `tests/...`, `scripts/...` (with * for any name), and headers and sources by their room, `fsdp/plan/mesh.h`;
 - tests: `process/limits_test.cc: Limits.MergingUnderShardingEqualsOneProcess`;
 - messages: the first column of tables that begin `| message |` must stand in src, `...` for what differs.

    tools/check_links.py [ROOT]
"""

import re
import subprocess
import sys
from pathlib import Path

TOP = "src|include|tests|bench|scripts|tools|docs|examples|cmake|\\.ci"
PATH = re.compile(rf"(?<![\w./$-])(?:{TOP})/[\w./*-]*[\w*]")
IN_A_ROOM = re.compile(r"(?<![\w./$-])[a-z_0-9]+/(?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:h|cc)\b")
TEST = re.compile(r"([\w/]+_test\.cc)`?: `?((?:[A-Z]\w+(?:\.\w+)?(?:, )?)+)")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Where a path without its first folder may lie.
PLACES = ("", "src/", "include/tessera/", "tests/", "tests/unit/", "include/")
# Not of this tree: PEFT's scripts, what is made where there is a GPU, what the changes say is gone.
ELSEWHERE = ("examples/sft", "bench/gpu/results", "scripts/kill_test.sh")


def heading_anchors(text):
    """As GitHub names headings: small letters, no punctuation, dashes for blanks, a number behind one that was there."""
    anchors, seen = set(), {}
    for line in outside_blocks(text)[0]:
        if match := re.match(r"#+\s+(.*)", line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).replace("`", "")
            anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
            seen[anchor] = seen.get(anchor, -1) + 1
            anchors.add(anchor if seen[anchor] == 0 else f"{anchor}-{seen[anchor]}")
    return anchors


def outside_blocks(text):
    """The lines, those of fenced blocks empty; and whether a fence is left open."""
    lines, fenced = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            lines.append("")
        else:
            lines.append("" if fenced else line)
    return lines, fenced


class Tree:
    def __init__(self, root: Path):
        self.root = root
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True)
        self.files = {name for name in listed.stdout.split("\n") if name and (root / name).exists()}
        self.texts = None  # of the program; read when they are asked for
        self.folders = {str(parent) for name in self.files for parent in Path(name).parents}

    def says(self, message):
        """Whether a text of the program holds the message's parts, in their order."""
        if self.texts is None:
            sources = [(self.root / name).read_text() for name in sorted(self.files) if re.match(r"src/.*\.(cc|h)$", name)]
            literal = r'"((?:[^"\\\n]|\\.)*)"'
            joined = (re.sub(r'"\s*\n\s*"|"\s*\+\s*"', "", source) for source in sources)
            self.texts = [text.replace('\\"', '"') for source in joined for text in re.findall(literal, source)]
        parts = [re.escape(part.strip()) for part in message.split("...")]
        wanted = re.compile(".*".join(part for part in parts if part))
        return any(wanted.search(text) for text in self.texts)

    def has(self, path):
        path = path.rstrip("/")
        if "*" in path:
            return any(self.root.glob(path))
        return path in self.files or path in self.folders or any(path + end in self.files for end in (".h", ".cc"))

    def find(self, path):
        return next((place + path for place in PLACES if self.has(place + path)), None)


def check_file(tree: Tree, name: str):
    text = (tree.root / name).read_text()
    in_messages = False
    for number, line in enumerate(outside_blocks(text)[0], 1):
        where = f"{name}:{number}"
        in_messages = line.startswith("| message |") or (in_messages and line.startswith("|"))
        for message in re.findall(r"`([^`]+)`", line.split("|")[1]) if in_messages and line.startswith("| `") else ():
            if not tree.says(message):
                yield f"{where}: no text of the program says '{message}'"
        plain = re.sub(r"`[^`]*`", "", line) if not line.startswith("    ") else ""
        for target in LINK.findall(plain):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (tree.root / name).parent / path if path else tree.root / name
            resolved = file.resolve()
            relative = str(resolved.relative_to(tree.root)) if resolved.is_relative_to(tree.root) else path
            if not tree.has(relative):
                yield f"{where}: the link leads to '{target}', and there is no such file"
            elif anchor and resolved.suffix == ".md" and anchor not in heading_anchors(resolved.read_text()):
                yield f"{where}: the link leads to '{target}', and there is no such heading"
        seen = LINK.sub("", line)
        for path in PATH.findall(seen):
            if not tree.has(path) and not path.startswith(ELSEWHERE):
                yield f"{where}: there is no '{path}'"
        for path in IN_A_ROOM.findall(seen):
            room = path.split("/")[0]
            if any(tree.has(place + room) for place in PLACES[1:4]) and not tree.find(path):
                yield f"{where}: there is no '{path}' in src, include/tessera or tests"
        for file, tests in TEST.findall(line):
            found = tree.find(file)
            source = (tree.root / found).read_text() if found else ""
            for test in filter(None, tests.split(", ")):
                parts = [part for part in test.split(".") if part]
                if found and not all(re.search(rf"\b{part}\b", source) for part in parts):
                    yield f"{where}: {found} has no test '{test}'"


def check(root: Path):
    tree = Tree(root.resolve())
    documents = sorted(name for name in tree.files if name.endswith(".md") and not name.startswith("tests/"))
    return [problem for name in documents for problem in check_file(tree, name)]


def main():
    problems = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
