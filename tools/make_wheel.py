#!/usr/bin/env python3
"""Packs the programs of build folders, each for another torch, as one wheel: make_wheel.py OUTPUT_FOLDER BUILD_FOLDER... Needs ldd,
readelf, patchelf, ninja and dpkg-query.

site-packages/tessera/torch2.13   tessera, tessera-worker and, where it was built, libtessera_cuda.so, for torch 2.13; others beside it
site-packages/tessera/lib         libraries that they need, but for those of glibc, the compiler and libtorch
*.dist-info/sboms                 the bill of materials (PEP 770): tools/make_sbom.py
The command is a script that becomes the program for the installed torch: python leaves the process before anything runs.
"""
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import make_sbom

# The platform tag, and the newest symbols that it allows (auditwheel's manylinux-policy.json).
PLATFORM = "manylinux_2_28"
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
# What every manylinux system has (PEP 600), and what torch's package brings.
NOT_PACKED = re.compile(r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+)\.so|libtorch|libc10|libgomp)")

INIT = '''"""Fully sharded fine-tuning of Transformers. The programs for torch X.Y are in torchX.Y/; the command is tessera."""
import importlib.util
import os
import re
import sys


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    known = sorted((name[5:] for name in os.listdir(here) if name.startswith("torch")), key=lambda v: [int(n) for n in v.split(".")])
    remedy = f"Install one that this package has programs for: pip install 'torch=={known[-1]}.*' (it has them for {', '.join(known)})."
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        sys.exit(f"error: tessera needs torch, which is not installed here. {remedy}")
    folder = os.path.abspath(torch.submodule_search_locations[0])
    with open(os.path.join(folder, "version.py")) as file:
        version = re.search("^__version__ = '([^']+)'", file.read(), re.M)[1]
    minor = ".".join(version.split(".")[:2])
    if minor not in known:
        sys.exit(f"error: tessera has no programs for torch {version}, which is installed in {folder}. {remedy}")
    if folder != os.path.join(os.path.dirname(here), "torch"):  # where the programs look themselves
        paths = [os.path.join(folder, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    program = os.path.join(here, "torch" + minor, "tessera")
    os.execv(program, ["tessera"] + sys.argv[1:])
'''


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def too_new(file):
    """Symbols of glibc and libstdc++ that the file needs, and that a system of the platform tag need not have: "dlopen@GLIBC_2.34"."""
    found = []
    for symbol in re.findall(r"\bUND +(\S+@\S+)", output("readelf", "--dyn-syms", "--wide", file)):
        kind, _, version = symbol.split("@")[-1].partition("_")
        if kind in NEWEST and tuple(map(int, version.split("."))) > NEWEST[kind]:
            found.append(symbol)
    return found


def check_symbols(files):
    lines = [f"  {os.path.basename(file)}: {', '.join(symbols)}" for file in files if (symbols := too_new(file))]
    if lines:
        sys.exit(
            f"error: {PLATFORM} has none of these symbols:\n" + "\n".join(lines) + "\nAdd the part of libstdc++.a that has them to tools/old_glibc.py, "
            "or what glibc lacks to cmake/old_glibc.cc; a packed library has to come from a system as old as Debian 12"
        )


def torch_version(build):
    match = re.search(r"TESSERA_TORCH_VERSION=\W*(\d+)\.(\d+)", open(os.path.join(build, "build.ninja")).read())
    return int(match[1]), int(match[2])


def needed_torch(torches):
    """Of two or more, the versions between the oldest and the newest that are missing are left out."""
    (major, first), (_, last) = torches[0], torches[-1]
    missing = [f",!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in torches]
    return f"torch>={major}.{first},<{major}.{last + 1}" + "".join(missing)


def project_version():
    return re.search(r"project\(tessera VERSION ([\d.]+)", open("CMakeLists.txt").read())[1]


def stage(builds, root):
    """Copies the programs and libraries of every build; returns them."""
    package = os.path.join(root, "tessera")
    os.makedirs(os.path.join(package, "lib"))
    open(os.path.join(package, "__init__.py"), "w").write(INIT)
    open(os.path.join(package, "__main__.py"), "w").write("from tessera import main\n\nmain()\n")
    files = []
    for torch, build in builds.items():
        programs = os.path.join(package, "torch{}.{}".format(*torch))
        os.makedirs(programs)
        for name, search in (("tessera", "$ORIGIN/../lib"), ("tessera-worker", "$ORIGIN/../lib:$ORIGIN/../../torch/lib")):
            source, target = os.path.join(build, name), os.path.join(programs, name)
            for library, path in make_sbom.libraries_of([source]).items():
                copy = os.path.join(package, "lib", library)
                if not NOT_PACKED.match(library) and not os.path.exists(copy):
                    shutil.copy(path, copy)
                    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", copy], check=True)
                    files.append(copy)
            shutil.copy(source, target)
            subprocess.run(["strip", target], check=True)
            subprocess.run(["patchelf", "--force-rpath", "--set-rpath", search, target], check=True)
            files.append(target)
        kernels = os.path.join(build, "libtessera_cuda.so")
        if os.path.exists(kernels):
            files.append(shutil.copy(kernels, programs))
    return files


def write_wheel(root, out, tag, version, torches, bill):
    info = f"tessera-{version}.dist-info"
    os.makedirs(os.path.join(root, info, "sboms"))
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: tessera\n"
        f"Version: {version}\nSummary: Fully sharded fine-tuning of large Transformers\nLicense: Apache-2.0\n"
        f"Requires-Python: >=3.9\nRequires-Dist: {needed_torch(torches)}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: tools/make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "sboms/tessera.cdx.json": json.dumps(bill, indent=1) + "\n",
        "entry_points.txt": "[console_scripts]\ntessera = tessera:main\n",
    }
    for name, text in texts.items():
        open(os.path.join(root, info, name), "w").write(text)
    shutil.copy("LICENSE", os.path.join(root, info, "LICENSE"))
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"tessera-{version}-{tag}.whl")
    record = []
    with zipfile.ZipFile(path + ".partial", "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                file = os.path.join(folder, name)
                place = os.path.relpath(file, root)
                data = open(file, "rb").read()
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                record.append(f"{place},sha256={digest},{len(data)}")
                entry = zipfile.ZipInfo(place)  # 1980: the same files make the same wheel
                entry.external_attr = (os.stat(file).st_mode & 0o111 | 0o100644) << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(record) + "\n", zipfile.ZIP_DEFLATED)
    os.replace(path + ".partial", path)
    return path


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, folders = sys.argv[1], sys.argv[2:]
    builds = {torch_version(folder): folder for folder in folders}
    torches = sorted(builds)
    if len(torches) < len(folders):
        sys.exit(f"error: two of these folders were built for the same minor version of torch: {' '.join(folders)}")
    with tempfile.TemporaryDirectory() as root:
        files = stage(builds, root)
        check_symbols(files)
        tag = f"py3-none-{PLATFORM}_{os.uname().machine}"
        names = ["{}.{}".format(*torch) for torch in torches]
        version = project_version() + (f"+torch{names[0]}" if len(names) == 1 else "")
        bill = make_sbom.make(folders, root, version)
        path = write_wheel(root, out, tag, version, torches, bill)
    print(f"{path}: {os.path.getsize(path) / 2**20:.1f} MiB, for torch {', '.join(names)}")


if __name__ == "__main__":
    main()
