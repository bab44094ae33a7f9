#!/usr/bin/env python3
"""Changes the code of the protocol in a copy and expects check.py to send to the models."""
import os
import shutil
import tempfile
import unittest

import check

PUBLISH = "  (control_.rank(rank_).*counter).store(value);\n"
BELL = "    peer.bell.fetch_add(1);\n"
WAKE = "    futex_wake_all(peer.bell);\n"


class Drift(unittest.TestCase):
    def complaints(self, file, old, new):
        with tempfile.TemporaryDirectory() as scratch:
            code = shutil.copytree(check.CODE, os.path.join(scratch, "comm"))
            path = os.path.join(code, file)
            text = check.read(path)
            self.assertIn(old, text)
            with open(path, "w") as out:
                out.write(text.replace(old, new))
            return "\n".join(check.check_code(code))

    def test_the_code_as_it_is(self):
        self.assertEqual(check.check_code(), [])

    def test_a_step_that_is_missing(self):
        self.assertIn("no statement 'futex_wake_all(peer.bell);'", self.complaints("group/group.cc", WAKE, ""))

    def test_steps_in_another_order(self):
        self.assertIn("stands before what the model does before it", self.complaints("group/group.cc", BELL + WAKE, WAKE + BELL))

    def test_a_step_that_no_model_has(self):
        self.assertIn("which no model", self.complaints("group/group.cc", PUBLISH, PUBLISH + "  control_.rank(0).pushed.store(1);\n"))

    def test_a_new_function(self):
        new = "void Group::peek() {\n  control_.rank(0).pushed.store(1);\n}\n\nvoid Group::publish("
        self.assertIn("Group::peek touches shared memory", self.complaints("group/group.cc", "void Group::publish(", new))

    def test_a_weaker_order(self):
        weak = PUBLISH.replace("(value)", "(value, std::memory_order_release)")
        self.assertIn("sequentially consistent", self.complaints("group/group.cc", PUBLISH, weak))
        self.assertIn("sequentially consistent", self.complaints("shm/host.h", "state.load()", "state.load(std::memory_order_relaxed)"))


if __name__ == "__main__":
    unittest.main()
