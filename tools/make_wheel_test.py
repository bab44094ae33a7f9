#!/usr/bin/env python3
"""The command of a wheel becomes the program for the torch that is installed, or says what is missing."""
import os
import subprocess
import sys
import tempfile
import unittest

import make_wheel


class Command(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.site = os.path.join(scratch.name, "site")
        self.write("tessera/__init__.py", make_wheel.INIT)
        for minor in ("2.9", "2.13"):
            program = self.write(f"tessera/torch{minor}/tessera", f'#!/bin/sh\necho {minor} "$@" $LD_LIBRARY_PATH\n')
            os.chmod(program, 0o755)

    def write(self, name, text, root=None):
        path = os.path.join(root or self.site, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def install_torch(self, version, root=None):
        """As torch's packages begin."""
        self.write("torch/__init__.py", "raise ImportError('torch is not to be imported')\n", root)
        self.write("torch/version.py", f"from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n__version__ = '{version}'\n", root)

    def run_command(self, *arguments, paths=()):
        call = f"import sys; sys.path[:0] = {[self.site, *paths]}; sys.argv[1:] = {list(arguments)}; from tessera import main; main()"
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        done = subprocess.run([sys.executable, "-I", "-S", "-c", call], capture_output=True, text=True, env=environment)
        return done.returncode, (done.stdout + done.stderr).strip()

    def test_is_the_program_for_the_installed_torch(self):
        self.install_torch("2.13.0+cpu")
        self.assertEqual(self.run_command("launch", "--x"), (0, "2.13 launch --x"))
        self.install_torch("2.9.1")
        self.assertEqual(self.run_command("env"), (0, "2.9 env"))

    def test_finds_a_torch_that_lies_elsewhere(self):
        other = os.path.join(os.path.dirname(self.site), "other")
        self.install_torch("2.13.0", other)
        self.assertEqual(self.run_command("env", paths=[other]), (0, f"2.13 env {other}/torch/lib"))

    def test_names_what_is_missing(self):
        code, said = self.run_command("env")
        self.assertEqual(code, 1)
        self.assertIn("torch, which is not installed here. Install one that this package has programs for: pip install 'torch==2.13.*'", said)
        self.install_torch("2.14.0a0+git1")
        code, said = self.run_command("env")
        self.assertEqual(code, 1)
        self.assertIn("no programs for torch 2.14.0a0+git1, which is installed in", said)
        self.assertIn("(it has them for 2.9, 2.13)", said)


class Symbols(unittest.TestCase):
    """Of a library that this machine's compiler makes."""

    def library(self, source):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        path = os.path.join(scratch.name, "library.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
        return path

    def test_newer_than_the_platform_are_refused_by_name(self):
        symbol = 'void* f(void) { extern void* %s(void); __asm__(".symver %s, %s@%s"); return %s(); }'
        old = self.library(symbol % ("statx", "statx", "statx", "GLIBC_2.28", "statx"))
        self.assertEqual(make_wheel.too_new(old), [])
        make_wheel.check_symbols([old])
        new = self.library(symbol % ("gettid", "gettid", "gettid", "GLIBC_2.30", "gettid"))
        self.assertEqual(make_wheel.too_new(new), ["gettid@GLIBC_2.30"])
        with self.assertRaisesRegex(SystemExit, r"manylinux_2_28 has none of these symbols:\n  library.so: gettid@GLIBC_2.30\n"):
            make_wheel.check_symbols([old, new])


class Needed(unittest.TestCase):
    def test_torch_is_what_there_are_programs_for(self):
        self.assertEqual(make_wheel.needed_torch([(2, 13)]), "torch>=2.13,<2.14")
        self.assertEqual(make_wheel.needed_torch([(2, 11), (2, 13)]), "torch>=2.11,<2.14,!=2.12.*")


if __name__ == "__main__":
    unittest.main()
