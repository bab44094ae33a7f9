#!/usr/bin/env python3
"""Makes the folder that cmake/OldGlibc.cmake links programs with, so that they run where manylinux_2_28 wheels do: old_glibc.py FOLDER

lib*.so.*, Scrt1.o, libc_nonshared.a   glibc 2.28 as a linker sees it: zig makes it, from the lists of symbols that it comes with
libc.so, libm.so, ...                  names under which a linker looks for them
libnew.a                               what the compiler's libstdc++ has beyond GLIBCXX_3.4.24, out of its own libstdc++.a, and cmake/old_glibc.cc
Needs the package ziglang of this Python, and the compiler of CXX (g++ 12 or newer).
"""
import os
import platform
import shutil
import subprocess
import sys
import tempfile

GLIBC = "2.28"
# Of libstdc++.a: std::filesystem, conversions of doubles, condition_variable::wait, std::pmr, exception_ptr, futures. They use what the
# system's libstdc++.so has of the rest, so the program and libtorch share that.
NEW = [
    "condition_variable.o",
    "cow-stdexcept.o",
    "eh_ptr.o",
    "floating_from_chars.o",
    "floating_to_chars.o",
    "fs_dir.o",
    "fs_ops.o",
    "fs_path.o",
    "functexcept.o",
    "futex.o",
    "memory_resource.o",
    "snprintf_lite.o",
    "sso_string.o",
    "sstream-inst.o",
]


def output(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def copy_glibc(scratch, folder):
    """What zig links an empty program with."""
    source = os.path.join(scratch, "empty.c")
    with open(source, "w") as file:
        file.write("int main(void) { return 0; }\n")
    caches = {name: os.path.join(scratch, "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    target = f"{platform.machine()}-linux-gnu.{GLIBC}"
    said = output(sys.executable, "-m", "ziglang", "cc", "-target", target, "-pie", "-v", source, "-o", source + ".out", env={**os.environ, **caches})
    linked = {word for line in said.splitlines() for word in line.split() if word.startswith(caches["ZIG_LOCAL_CACHE_DIR"])}
    names = {os.path.basename(path): path for path in linked}
    libraries = [name for name in names if name.startswith("lib") and ".so." in name]
    for name in [*libraries, "Scrt1.o", "libc_nonshared.a"]:
        shutil.copy(names[name], folder)
    for name in libraries:
        if name != "libc.so.6":
            os.symlink(name, os.path.join(folder, name.split(".so.")[0] + ".so"))
    others = " ".join(os.path.join(folder, name) for name in sorted(libraries) if name != "libc.so.6")  # glibc 2.34 has them in libc
    with open(os.path.join(folder, "libc.so"), "w") as file:
        file.write(f"GROUP ( {folder}/libc.so.6 {folder}/libc_nonshared.a AS_NEEDED ( {others} ) )\n")


def make_archive(scratch, archive):
    compiler = os.environ.get("CXX", "g++")
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cmake", "old_glibc.cc")
    output(compiler, "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-c", own, "-o", "old_glibc.o", cwd=scratch)
    library = output(compiler, "-print-file-name=libstdc++.a").strip()
    output("ar", "x", library, *NEW, cwd=scratch)
    output("ar", "rcs", archive, "old_glibc.o", *NEW, cwd=scratch)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = os.path.abspath(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with tempfile.TemporaryDirectory() as scratch:
        copy_glibc(scratch, folder)
        make_archive(scratch, os.path.join(folder, "libnew.a"))  # last: whoever finds it finds the others


if __name__ == "__main__":
    main()
