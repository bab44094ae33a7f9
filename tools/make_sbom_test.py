#!/usr/bin/env python3
"""A bill of materials that does not fit its package is found out."""
import json
import os
import shutil
import tempfile
import unittest

import make_sbom


class Bill(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name
        os.makedirs(os.path.join(self.root, "tessera/torch2.13"))
        shutil.copy("/bin/true", self.path("tessera/torch2.13/tessera"))
        self.write("tessera/__init__.py", "import os\n")
        needed = {"name": "glibc", "version": "2.36", "licenses": [{}], "bom-ref": "glibc", "properties": [self.told("PART", "NEEDED")]}
        self.bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [needed]}
        for place in ("tessera/torch2.13/tessera", "tessera/__init__.py"):
            digest = {"alg": "SHA-256", "content": make_sbom.sha256(self.path(place))}
            told = [self.told("PART", "PACKED"), {"name": make_sbom.PLACE, "value": place}]
            self.bill["components"].append(dict(needed, **{"bom-ref": place, "hashes": [digest], "properties": told}))

    @staticmethod
    def told(name, value):
        return {"name": getattr(make_sbom, name), "value": getattr(make_sbom, value)}

    def path(self, place):
        return os.path.join(self.root, place)

    def write(self, place, text):
        with open(self.path(place), "w") as file:
            file.write(text)

    def expect(self, words):
        self.assertIn(words, "\n".join(make_sbom.check(self.bill, self.root)))

    def test_that_fits(self):
        self.assertEqual(make_sbom.check(json.loads(json.dumps(self.bill)), self.root), [])

    def test_with_another_file(self):
        self.write("tessera/__init__.py", "import sys\n")
        self.expect("tessera/__init__.py: its SHA-256 is another")

    def test_without_a_file(self):
        self.write("tessera/more.py", "")
        self.expect("tessera/more.py: a file that the bill does not have")
        os.remove(self.path("tessera/__init__.py"))
        self.expect("tessera/__init__.py: the bill has it, the package does not")

    def test_without_a_licence_or_a_version(self):
        self.bill["components"][1]["licenses"] = []
        self.bill["components"][2]["version"] = ""
        self.expect("tessera/torch2.13/tessera: no licenses")
        self.expect("tessera/__init__.py: no version")

    def test_without_the_libraries_of_the_system(self):
        del self.bill["components"][0]
        self.expect("nothing is said about the libraries that are not in the package: libc.so.6")


if __name__ == "__main__":
    unittest.main()
