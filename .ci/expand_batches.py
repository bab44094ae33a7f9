#!/usr/bin/env python3
"""The compile commands of single sources: what cmake/Rooms.cmake compiles in batches is one entry a source here.

    .ci/expand_batches.py BUILD_FOLDER     # reads its compile_commands.json, writes single/compile_commands.json below it
"""

import json
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def sources_of(entry: dict) -> list[Path]:
    """The sources that a batch includes, by the include folders src and tests; of another file itself."""
    file = Path(entry["file"])
    if file.parent.name != "batches":
        return [file]
    root = Path(__file__).resolve().parent.parent
    folders = [root / "tests" if file.name.startswith("test_") else root / "src"]
    return [folder / path for path in INCLUDE.findall(file.read_text()) for folder in folders]


def main() -> None:
    build = Path(sys.argv[1])
    single = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        for source in sources_of(entry):
            command = re.sub(r" -o \S+ -c \S+$", f" -c {source}", entry["command"])
            single.append({"directory": entry["directory"], "file": str(source), "command": command})
    (build / "single").mkdir(exist_ok=True)
    (build / "single" / "compile_commands.json").write_text(json.dumps(single, indent=1))


if __name__ == "__main__":
    main()
