#!/usr/bin/env python3
"""Holds the code against docs/architecture.md; prints each violation and exits 1 when there is one.

 - `#include "room/x.h"` and `#include "tessera/room/x.h"` name only rooms that the table allows to the file's room;
 - `tessera_room(... DEPENDS ...)` in CMakeLists.txt names only allowed rooms, and links every allowed one (rooms reached
   through rooms count);
 - every room of the table is in CMakeLists.txt, and the other way round; the table has no cycle;
 - public headers include public headers only, and tessera/tessera.h all of them;
 - no source or header is longer than 500 lines;
 - files are opened for reading through base/open_file.h, which takes no pipe, folder or device for a file;
 - JSON is written by base/json_text.h, which takes texts that are not UTF-8 (names of files);
 - no file of the project names a path outside it (a neighbouring folder, somebody's machine).

    tools/check_layers.py [ROOT]
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 500
SOURCES = {".h", ".cc", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"(?:tessera/)?([a-z0-9_]+)/[^"]+"')
OPENS_TO_READ = re.compile(
    r"\bifstream\b|\bfopen\s*\([^;]*\"r|MemoryMappedFile::Open|ReadableFile::Open|\bparser\.load\s*\(|"
    r"\bopen(?:at)?\s*\((?![^;]*O_(?:CREAT|DIRECTORY)\b)[^;]*\bO_(?:RDONLY|RDWR)\b"
)
OF_THE_SYSTEM = re.compile(r'"/(?:proc|sys|dev)/')
# What else may open files: the function itself, files of the system whose paths are put together, and files of our own making.
OPENERS = {f"src/{name}.cc" for name in ("base/open_file", "base/cpu_quota", "report/memory", "checkpoint/checkpoint_folder", "tensor/offload_store")}
DUMPS = re.compile(r"\.dump\s*\(")
# Spelled in two parts so that this file does not accuse itself.
OUTSIDE = re.compile(r"\.\./" r"shared\b|(?<![\w.$}/-])/(?:" r"work|root|home)/\w")


def read_table(text: str) -> dict[str, set[str]]:
    """The rows `| room | includes | what it holds |` of the section "Rooms"."""
    table, inside = {}, False
    for line in text.splitlines():
        if line.startswith("## "):
            inside = line.strip() == "## Rooms"
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if inside and line.startswith("|") and len(cells) == 3 and re.fullmatch(r"[a-z0-9_]+", cells[0]) and cells[0] != "room":
            table[cells[0]] = set(cells[1].split())
    return table


def read_cmake(text: str) -> dict[str, set[str]]:
    """tessera_room(NAME [DEPENDS rooms...] [LINK targets...]): the rooms named behind DEPENDS."""
    rooms = {}
    for name, rest in re.findall(r"^tessera_room\((\w+)([^)]*)\)", text, re.MULTILINE):
        depends = re.search(r"DEPENDS\s+([\w\s]+?)(?:\s+LINK\b|$)", rest)
        rooms[name] = set(depends.group(1).split()) if depends else set()
    return rooms


def reachable(rooms: dict[str, set[str]], name: str) -> set[str]:
    found, todo = set(), [name]
    while todo:
        for room in rooms.get(todo.pop(), set()) - found:
            found.add(room)
            todo.append(room)
    return found


def check_tables(table: dict[str, set[str]], cmake: dict[str, set[str]]) -> list[str]:
    problems = []
    for room in sorted(set(table) ^ set(cmake)):
        where, lacks = ("docs/architecture.md", "CMakeLists.txt") if room in table else ("CMakeLists.txt", "docs/architecture.md")
        problems.append(f"{lacks}: room '{room}' of {where} is missing")
    for room, allowed in table.items():
        for other in sorted(allowed - set(table)):
            problems.append(f"docs/architecture.md: room '{room}' includes '{other}', which is no room")
        if room in reachable(table, room):
            problems.append(f"docs/architecture.md: room '{room}' includes itself through other rooms")
        if room in cmake:
            for other in sorted(cmake[room] - allowed):
                problems.append(f"CMakeLists.txt: '{room}' depends on '{other}', which docs/architecture.md does not allow")
            for other in sorted(allowed & set(table) - reachable(cmake, room)):
                problems.append(f"CMakeLists.txt: '{room}' may include '{other}' by docs/architecture.md but does not link it")
    return problems


def room_of(path: Path) -> str | None:
    """The room that a file of src/ or include/tessera/ belongs to."""
    parts = path.parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ("include", "tessera") and len(parts) > 3:
        return parts[2]
    return None


def check_source(path: Path, text: str, table: dict[str, set[str]]) -> list[str]:
    problems = []
    room = room_of(path)
    lines = text.splitlines()
    if path.parts[0] in ("src", "include") and len(lines) > MAX_LINES:
        problems.append(f"{path}: {len(lines)} lines; at most {MAX_LINES}: one concept per file")
    if room is None:
        return problems
    if room not in table:
        return [*problems, f"{path}: '{room}' is no room of docs/architecture.md"]
    for number, line in enumerate(lines, 1):
        if OPENS_TO_READ.search(line) and not OF_THE_SYSTEM.search(line) and path.as_posix() not in OPENERS:
            problems.append(f"{path}:{number}: opens a file by itself; use OpenFile, read_file() or InputFile: {line.strip()[:100]}")
        if DUMPS.search(line) and path.as_posix() != "src/base/json_text.cc":
            problems.append(f"{path}:{number}: writes JSON by itself; use json_text(): {line.strip()[:100]}")
        match = INCLUDE.match(line)
        if match and match.group(1) in table and match.group(1) not in table[room] | {room}:
            problems.append(f"{path}:{number}: '{room}' must not include '{match.group(1)}' (allowed: {' '.join(sorted(table[room])) or 'nothing'})")
    return problems


def check_paths(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{number}: names a path outside the project: {line.strip()[:100]}"
        for number, line in enumerate(text.splitlines(), 1)
        if OUTSIDE.search(line)
    ]


def check_public(path: Path, text: str, umbrella: str) -> list[str]:
    """What a user's program includes must be there once the library is installed."""
    if room_of(path) is None or path.parts[0] != "include":
        return []
    problems = [
        f"{path}:{number}: a public header includes a private one: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if INCLUDE.match(line) and '"tessera/' not in line
    ]
    if umbrella and f'"{path.relative_to("include")}"' not in umbrella:
        problems.append(f"include/tessera/tessera.h: {path.relative_to('include')} is missing")
    return problems


def project_files(root: Path) -> list[Path]:
    """Files that git tracks or would track, relative to the root."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True
    ).stdout.decode()
    return sorted(Path(name) for name in listed.split("\0") if name and (root / name).is_file())


def check(root: Path) -> list[str]:
    table = read_table((root / "docs/architecture.md").read_text())
    if not table:
        return ["docs/architecture.md: no table under '## Rooms'"]
    problems = check_tables(table, read_cmake((root / "CMakeLists.txt").read_text()))
    umbrella = root / "include/tessera/tessera.h"
    umbrella_text = umbrella.read_text() if umbrella.is_file() else ""
    for path in project_files(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary or a data file in another encoding
        if "\0" in text:
            continue
        if path.suffix in SOURCES:
            problems += check_source(path, text, table) + check_public(path, text, umbrella_text)
        problems += check_paths(path, text)
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    problems = check(root)
    print("\n".join(problems) if problems else "check_layers: the code keeps to docs/architecture.md")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
