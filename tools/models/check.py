#!/usr/bin/env python3
"""Checks the models of the protocol between the ranks of a host (src/comm): check.py [--long] [--no-spin]

1. Against the code. A comment of a model, "@ FILE FUNCTION | STATEMENT", says which statement of src/comm a step stands for. Each must
   stand in that function, those of a part of the model in its order; and what touches shared memory in these files must stand in
   a model. So who changes the protocol is sent to the models. All atomics must be sequentially consistent, on which the models rest.
2. With spin, by every order of steps: nothing goes wrong (RIGHT).
3. With spin: each mutation, a mistake that one could make, is found (WRONG). A model that finds none would prove nothing.

--long adds what takes minutes and gigabytes: three ranks, and every fault at every step. Without spin (Debian: spin) only 1. is done, which
is said; --no-spin asks for that.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CODE = os.path.join(HERE, "../../src/comm")
FILES = ("group/group.h", "group/group.cc", "group/rounds.cc", "group/operation_queue.cc", "shm/host.h", "shm/host.cc")
TOUCHES = re.compile(r"(\.load\(|\.store\(|fetch_add\(|compare_exchange|futex_w|\bawait\(|\bpublish\(|announcement\(\w+, )")
# Functions that only read, for messages, or only pass on what others do.
NOT_MODELLED = {
    "Group::progress_of": "text of messages",
    "Group::fail_timeout": "text of messages",
    "Group::note_wait": "what `tessera status` shows",
    "Group::activity_of": "text of messages",
    "Group::departure_of": "text of messages",
    "Group::peers": "text of messages, and who has left",
    "Group::check_world": "the same looks, for ranks that also wait for other hosts",
}
# Inside functions that are modelled: reads of counters for a message, of this rank's own announcement, of what waits are about.
NOT_STEPS = (
    "if (r == rank_ || (peer >= 0 && r != peer) || (control_.rank(r).*counter).load() >= value) continue; return note_wait",
    "state.posted.load()",
    "mine_ = control_.announcement(sequence, rank_);",
)
FAULTS = "-DFAULT_KILL -DFAULT_STOP -DFAULT_LEAVE -DFAULT_ERROR"
ENDS = "-DENDS"  # a cycle counts, not only a standstill

RIGHT = [
    ("wait", "", "two ranks"),
    ("wait", FAULTS, "two ranks, a fault at every step"),
    ("wait", FAULTS + " -DENDS", "two ranks, a fault at every step: every wait ends"),
    ("wait", FAULTS + " -DGROUPS=2", "two groups, a fault at every step"),
    ("wait", "-DFAULT_INTERRUPT", "a thread is interrupted"),
    ("rounds", "", "two ranks"),
    ("rounds", "-DN=3", "three ranks"),
    ("queue", "", "two threads of a rank"),
    ("queue", "-DTWO", "two threads of a rank, two operations"),
    ("queue", "-DGONE", "the other rank never comes"),
]
LONG = [
    ("wait", "-DN=3", "three ranks"),
    ("wait", "-DN=3 -DFAULT_LEAVE -DFAULT_ERROR -DFAULTS=2", "three ranks, two leave or fail"),
    ("wait", "-DN=3 -DFAULT_KILL", "three ranks, one is killed at every step"),
]
WRONG = [
    ("wait", "-DNO_WAKE", "the sleeper is not woken"),
    ("wait", "-DNO_BELL", "the bell does not change: who is about to sleep misses it"),
    ("wait", "-DWAKE_BEFORE_BELL", "it is woken before the bell changes"),
    ("wait", "-DLATE_BELL", "the bell is read after the counters"),
    ("wait", "-DWEAK_PUBLISH", "no fence between the counter's store and the look for sleepers"),
    ("wait", "-DWEAK_SLEEP", "no fence between 'I sleep' and the last look at the counters"),
    ("wait", "-DFAULT_LEAVE -DNO_LEFT_CHECK", "nobody looks who has left"),
    ("wait", "-DFAULT_LEAVE -DLEFT_LAST", "who leaves says so after it has rung"),
    ("wait", "-DFAULT_KILL -DNO_ALIVE_CHECK -DENDS", "nobody looks whose process has ended"),
    ("wait", "-DFAULT_KILL -DALIVE_AFTER_COUNTER", "the counter is read before the process is looked at"),
    ("wait", "-DFAULT_ERROR -DNO_ABORT_CHECK -DENDS", "nobody looks whether the world has failed"),
    ("wait", "-DFAULT_ERROR -DTORN_ABORT", "a record of a failure that is being written is read"),
    ("wait", "-DFAULT_ERROR -DFAULTS=2 -DN=3 -DNO_CAS", "two ranks write it at once"),
    ("wait", "-DFAULT_INTERRUPT -DNO_BELL_OF_INTERRUPT", "an interruption does not change the bell"),
    ("rounds", "-DNO_ROOM", "an announcement is overwritten before all have finished its operation"),
    ("rounds", "-DPOSTED_FIRST", "the counter is published before the announcement"),
    ("rounds", "-DNO_MEET", "an operation runs before all have started it"),
    ("rounds", "-DNO_INPUT_FREE", "shared memory is overwritten while peers read it"),
    ("rounds", "-DFINISHED_FIRST", "an operation is called finished before it has read"),
    ("rounds", "-DNO_CONSUMED", "a stage is filled again without a look at its readers"),
    ("rounds", "-DCONSUMED_TOO_FEW", "one round too early"),
    ("rounds", "-DNO_PUSHED", "a stage is read without a look at its writer"),
    ("rounds", "-DWEAK_PUSH", "no fence between a stage and its counter"),
    ("rounds", "-DWEAK_CONSUME", "no fence between the reads of a stage and the reader's counter"),
    ("queue", "-DNO_ANNOUNCE", "what is started during the thread's turn waits for its own caller"),
    ("queue", "-DALWAYS_ANNOUNCE", "it is told to the peers while the thread uses the group"),
    ("queue", "-DNO_CHANGED", "the end of a turn does not wake the caller"),
    ("queue", "-DNO_OWN_WORK", "the end of a turn does not wake the thread"),
    ("queue", "-DTWO -DNO_NOTIFY_AT_START", "a start does not wake the thread"),
    ("queue", "-DGONE -DNO_INTERRUPT", "the end of the queue does not interrupt its thread"),
]


def read(path):
    with open(path) as file:
        return file.read()


def plain(text):
    return re.sub(r"\s+", " ", text).strip()


def functions_of(text):
    """Name -> body, of functions whose braces stand as clang-format puts them."""
    found = {}
    lines = text.split("\n")
    begin, name = None, None
    for number, line in enumerate(lines):
        if line and not line[0].isspace():
            match = re.search(r"([\w:~]+)\(", line)
            if match and not line.endswith(";") and not line.startswith(("//", "#")):
                begin, name = number, match[1]
        if line == "}" and begin is not None:
            found[name] = found.get(name, "") + plain("\n".join(lines[begin + 1 : number])) + " "
            begin = None
        elif begin is not None and line.endswith(";") and not line[0].isspace():
            begin = None
    return found


def statements_of(model):
    text = read(os.path.join(HERE, model + ".pml"))
    for match in re.finditer(r"/\*@ (\S+) ?([^|\s]*) \| (.*?) \*/", text):
        block = re.findall(r"^(?:inline|proctype|active proctype) (\w+)", text[: match.start()], re.M)[-1:]
        yield (f"{model}.pml:{text.count(chr(10), 0, match.start()) + 1}", (model, *block), *match.groups())


def check_code(code=CODE):
    """What does not agree, as lines of text."""
    wrong = []
    texts = {file: read(os.path.join(code, file)) for file in FILES}
    bodies = {file: functions_of(text) for file, text in texts.items()}
    rest = {}
    at = {}
    for where, block, file, function, statement in (s for m in ("wait", "rounds", "queue") for s in statements_of(m)):
        where = "tools/models/" + where
        body = bodies.get(file, {}).get(function) if function else plain(texts.get(file, ""))
        if body is None:
            wrong.append(f"{where}: src/comm/{file} has no function {function}")
            continue
        statement = plain(statement)
        if statement not in body:
            wrong.append(f"{where}: {function or file} has no statement '{statement}': the code has changed, and the model must follow")
            continue
        key = (block, file, function)
        after = body.find(statement, at.get(key, 0))
        if after < 0:
            wrong.append(f"{where}: in {function} '{statement}' stands before what the model does before it")
        else:
            at[key] = after
        if function:
            rest[function] = rest.get(function, body).replace(statement, ";")
    for file, functions in bodies.items():
        for name, body in functions.items():
            if name in NOT_MODELLED:
                continue
            left = rest.get(name, body)
            for harmless in NOT_STEPS:
                left = left.replace(harmless, "")
            for match in TOUCHES.finditer(left):
                wrong.append(
                    f"src/comm/{file}: {name} touches shared memory in '...{left[max(0, match.start() - 40):match.end() + 30]}...', which no model of tools/models has"
                )
        for match in re.finditer(r".*memory_order_(?!relaxed).*|.*rank\(\w+\).*memory_order.*", texts[file]):
            wrong.append(f"src/comm/{file}: '{match[0].strip()}': the models need sequentially consistent atomics")
        for match in re.finditer(r"^.*memory_order_relaxed.*$", texts[file], re.M):
            if "waiting_" not in match[0]:  # of RankRecord, which only messages read
                wrong.append(f"src/comm/{file}: '{match[0].strip()}': the models need sequentially consistent atomics")
    return wrong


def run(model, flags, level):
    """What spin found; empty: nothing wrong. level: of the compiler, for the search."""
    flags = flags.split()
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(os.path.join(HERE, model + ".pml"), scratch)
        made = subprocess.run(["spin", *flags, "-a", model + ".pml"], cwd=scratch, capture_output=True, text=True)
        if made.returncode != 0 or "Error" in made.stdout:
            sys.exit(f"error: spin does not take {model}.pml {flags}: {made.stdout}{made.stderr}")
        ends = ENDS in flags
        options = [] if ends else ["-DSAFETY"]
        subprocess.run(["cc", level, "-w", *options, "-o", "pan", "pan.c"], cwd=scratch, check=True)
        search = ["./pan", "-m1000000", *(["-a", "-f", "-N", "ends"] if ends else [])]
        said = subprocess.run(search, cwd=scratch, capture_output=True, text=True).stdout
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    if not errors or not states or "max search depth too small" in said:
        sys.exit(f"error: the search of {model}.pml {flags} did not end: {said[-800:]}")
    found = re.search(r"pan:1: (.*?) \(at depth", said)
    return found[1] if int(errors[1]) > 0 else "", int(states[1])


def outcome(case):
    model, flags, _ = case
    return run(model, flags, "-O1" if case in LONG else "-O0")  # of the others most of the time is the compiler's


def main():
    wrong = check_code()
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)
    print("the models name the code's own steps")
    if "--no-spin" in sys.argv or not shutil.which("spin"):
        print("spin is not installed (Debian: apt-get install spin): the models were not run" if "--no-spin" not in sys.argv else "the models were not run")
        return
    right = RIGHT + (LONG if "--long" in sys.argv else [])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (model, flags, what), (found, states) in zip(right + WRONG, pool.map(outcome, right + WRONG)):
            is_mutation = (model, flags, what) in WRONG
            if found and not is_mutation:
                sys.exit(f"error: {model}.pml {flags} ({what}): {found}")
            if not found and is_mutation:
                sys.exit(f"error: {model}.pml {flags} ({what}): the mutation is not found")
            print(f"{model}: {what}: " + (f"found: {found}" if is_mutation else f"nothing wrong in {states} states"))


if __name__ == "__main__":
    main()
