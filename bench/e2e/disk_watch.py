#!/usr/bin/env python3
"""What the disk under a folder reads, by the kernel's counters (/proc/diskstats), while a command runs.

    bench/e2e/disk_watch.py FOLDER OUT COMMAND...

OUT: a line of JSON every 50 ms: {"time": seconds since the epoch, "read_bytes", "busy_seconds"}, both since the machine started.
"""

import json
import os
import subprocess
import sys
import time


def counters(device):
    with open("/proc/diskstats") as stats:
        for line in stats:
            fields = line.split()
            if (int(fields[0]), int(fields[1])) == device:
                return {"time": time.time(), "read_bytes": int(fields[5]) * 512, "busy_seconds": int(fields[12]) / 1000}
    raise SystemExit(f"/proc/diskstats has no device {device[0]}:{device[1]}: is the folder on a disk of this machine?")


def main():
    folder, out, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    number = os.stat(folder).st_dev
    device = (os.major(number), os.minor(number))
    with open(out, "w") as log:
        job = subprocess.Popen(command)
        while job.poll() is None:
            log.write(json.dumps(counters(device)) + "\n")
            time.sleep(0.05)
    sys.exit(job.returncode)


if __name__ == "__main__":
    main()
