#!/usr/bin/env python3
"""Deletes each wait and each event's record of the code that uses several streams, one at a time, builds, and runs the tests
that must fail then; prints those that no test misses and exits 1 when there is one. The source is put back in any case.

    tools/delete_waits.py [BUILD_FOLDER]      # build/release; some minutes
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "src/comm/device/nccl_engine.cc"
WAITS = [
    (ENGINE, "    done_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));\n"),
    (ENGINE, "    ready.record(impl.getStream(device_));\n"),
    (ENGINE, "    ready.block(stream_);\n"),
    (ENGINE, "    done.record(stream_);\n"),
]
TESTS = ["test_unit_fsdp", "--gtest_filter=*Resident*Nccl*:*DeviceGroup*:Nccl*"]


def main():
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    make = ["ninja", "-C", str(build), TESTS[0]]
    survivors = 0
    for name, line in [(None, None), *WAITS]:
        path = ROOT / (name or ENGINE)
        text = path.read_text()
        assert line is None or text.count(line) == 1, f"{name}: expected once: {line}"
        try:
            if line:
                path.write_text(text.replace(line, ""))
            subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run([build / TESTS[0], *TESTS[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        except subprocess.TimeoutExpired as e:  # it waits for ever, which somebody notices
            done = e
        finally:
            path.write_text(text)
        failed = getattr(done, "returncode", 1) != 0
        if line is None and failed:
            sys.exit("the tests fail as things are")
        if line:
            survivors += not failed
            print(f"{'noticed ' if failed else 'MISSED  '} {name}: {line.strip()}", flush=True)
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return 1 if survivors else 0


sys.exit(main())
