#!/usr/bin/env python3
"""Packs the programs of a build folder as a wheel: make_wheel.py BUILD_FOLDER OUTPUT_FOLDER. Needs ldd, readelf, patchelf,
ninja and dpkg-query.

site-packages/tessera/bin   tessera and tessera-worker
site-packages/tessera/lib   libraries that they need, but for those of glibc, the compiler and libtorch
*.dist-info/sboms           the bill of materials (PEP 770): tools/make_sbom.py
The command is a script that becomes the program: python leaves the process before anything runs.
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

# What every manylinux system has (PEP 600), and what torch's package brings.
NOT_PACKED = re.compile(r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+)\.so|libtorch|libc10|libgomp)")

INIT = '''"""Fully sharded fine-tuning of Transformers. The programs are in bin/; the command is tessera."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tessera")
    os.execv(program, ["tessera"] + sys.argv[1:])
'''


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(program):
    """name -> path, of what is packed."""
    found = {}
    for line in output("ldd", program).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if not match:
            continue
        name, path = match.groups()
        if path == "not":
            sys.exit(f"error: {program} needs {name}, which is not found on this machine")
        if not NOT_PACKED.match(name):
            found[name] = path
    return found


def newest_glibc(files):
    """The platform tag says which glibc the programs need at least."""
    versions = {(2, 17)}
    for file in files:
        for match in re.finditer(r"\bGLIBC_(\d+)\.(\d+)", output("readelf", "--version-info", "--wide", file)):
            versions.add((int(match[1]), int(match[2])))
    return "manylinux_{}_{}".format(*max(versions))


def torch_version(build):
    match = re.search(r'TESSERA_TORCH_VERSION=\W*(\d+)\.(\d+)', open(os.path.join(build, "build.ninja")).read())
    return match.groups()


def project_version():
    return re.search(r"project\(tessera VERSION ([\d.]+)", open("CMakeLists.txt").read())[1]


def stage(build, root):
    """Copies the programs and libraries; returns them."""
    package = os.path.join(root, "tessera")
    os.makedirs(os.path.join(package, "bin"))
    os.makedirs(os.path.join(package, "lib"))
    open(os.path.join(package, "__init__.py"), "w").write(INIT)
    open(os.path.join(package, "__main__.py"), "w").write("from tessera import main\n\nmain()\n")
    files = []
    for name, search in (("tessera", "$ORIGIN/../lib"), ("tessera-worker", "$ORIGIN/../lib:$ORIGIN/../../torch/lib")):
        source, target = os.path.join(build, name), os.path.join(package, "bin", name)
        for library, path in libraries(source).items():
            copy = os.path.join(package, "lib", library)
            if not os.path.exists(copy):
                shutil.copy(os.path.realpath(path), copy)
                subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", copy], check=True)
                files.append(copy)
        shutil.copy(source, target)
        subprocess.run(["strip", target], check=True)
        subprocess.run(["patchelf", "--force-rpath", "--set-rpath", search, target], check=True)
        files.append(target)
    return files


def write_wheel(root, out, tag, version, torch, bill):
    info = f"tessera-{version}.dist-info"
    os.makedirs(os.path.join(root, info, "sboms"))
    major, minor = torch
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: tessera\n"
        f"Version: {version}\nSummary: Fully sharded fine-tuning of large Transformers\nLicense: Apache-2.0\n"
        f"Requires-Python: >=3.9\nRequires-Dist: torch>={major}.{minor},<{major}.{int(minor) + 1}\n",
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
                entry.external_attr = (0o100755 if "/bin/" in place else 0o100644) << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(record) + "\n", zipfile.ZIP_DEFLATED)
    os.replace(path + ".partial", path)
    return path


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = sys.argv[1:]
    torch = torch_version(build)
    with tempfile.TemporaryDirectory() as root:
        files = stage(build, root)
        tag = f"py3-none-{newest_glibc(files)}_{os.uname().machine}"
        version = f"{project_version()}+torch{torch[0]}.{torch[1]}"
        bill = make_sbom.make(build, root, version)
        path = write_wheel(root, out, tag, version, torch, bill)
    print(f"{path}: {os.path.getsize(path) / 2**20:.1f} MiB, for torch {torch[0]}.{torch[1]}")


if __name__ == "__main__":
    main()
