#!/usr/bin/env python3
"""The software bill of materials of a package (CycloneDX 1.6, JSON): what its files are and what was compiled into them.

    make_sbom.py check BILL ROOT    the installed package ROOT/tessera is what BILL says: its test

tools/make_wheel.py writes it, from what was really used: the libraries that the dynamic linker gives the programs (ldd), and the headers that
the compiler read (ninja -t deps), with the packages of Debian or of Python that these files belong to. Needs ldd, ninja, dpkg-query.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

# Debian's short names of licences that SPDX has under another; others that look like SPDX's are taken as they are.
SPDX = {
    "Expat": "MIT",
    "MIT": "MIT",
    "BSD-3-clause": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "BSD-2-clause": "BSD-2-Clause",
    "Apache-2.0": "Apache-2.0",
    "Apache-2": "Apache-2.0",
    "BSL-1.0": "BSL-1.0",
    "X11": "X11",
    "curl": "curl",
}
# Of packages whose copyright file is in no machine's form.
KNOWN = {"gcc": "GPL-3.0-or-later WITH GCC-exception-3.1", "glibc": "LGPL-2.1-or-later", "linux": "GPL-2.0-only WITH Linux-syscall-note"}
PART, PACKED, COMPILED, NEEDED = "tessera:part", "file of this package", "compiled in (headers)", "needed from the system"
PLACE = "tessera:place"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def headers_of(build):
    """Those outside of the project, of all objects of the two programs."""
    root = os.path.realpath(re.search(r"^CMAKE_HOME_DIRECTORY:.*?=(.*)$", read(os.path.join(build, "CMakeCache.txt")), re.M)[1])
    own = tuple(os.path.join(root, folder) + "/" for folder in ("src", "include", "cmake", "tests", "build")) + (os.path.realpath(build) + "/",)
    found, ours = set(), False
    for line in output("ninja", "-C", build, "-t", "deps").splitlines():
        if line and not line[0].isspace():
            ours = re.match(r"CMakeFiles/tessera[\w-]*\.dir/", line) is not None
        elif ours and line.strip().startswith("/"):
            found.add(os.path.realpath(line.strip()))
    found = {path for path in found if not path.startswith(own)}
    if not found:
        sys.exit(f"error: ninja knows no headers of the programs in {build}: build it first, with this tree's ninja files")
    return found


def libraries_of(programs):
    """name -> path, of what the dynamic linker loads for them; what libtorch needs in turn comes with torch's package."""
    found = {}
    for program in programs:
        paths, rest = dict(re.findall(r"^\s*(\S+) => (\S+)", output("ldd", program), re.M)), [program]
        while rest:
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", rest.pop())):
                if name in found or name.startswith("ld-linux"):
                    continue
                if paths.get(name, "not") == "not":
                    sys.exit(f"error: {program} needs {name}, which is not found on this machine")
                found[name] = os.path.realpath(paths[name])
                if not re.match(r"lib(torch|c10)", name):
                    rest.append(found[name])
    return found


def debian_packages(paths):
    """path -> package, for files that dpkg knows."""
    found = {}
    tried = {alias: path for path in paths for alias in (path, path.replace("/usr/lib/", "/lib/", 1))}  # merged /usr
    for begin in range(0, len(tried), 500):
        names = sorted(tried)[begin : begin + 500]
        said = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True).stdout
        for packages, path in re.findall(r"^(.+?): (/.*)$", said, re.M):
            if path in tried and not packages.startswith("diversion"):
                found[tried[path]] = packages.split(",")[0].split(":")[0]
    return found


def debian_licences(package, source):
    known = KNOWN.get(re.sub(r"^gcc-\d+$", "gcc", source))
    if known:
        return [{"expression": known}]
    text = read(f"/usr/share/doc/{package}/copyright")
    stanza = re.search(r"^Files:\s*\*\s*\n(.*?)(?:\n\n|\Z)", text, re.S | re.M)
    name = re.search(r"^License:\s*(\S.*)$", stanza[1] if stanza else text, re.M)
    if not name:
        return [{"license": {"name": f"see /usr/share/doc/{package}/copyright of Debian's package"}}]
    if name[1] in SPDX:
        return [{"license": {"id": SPDX[name[1]]}}]
    return [{"license": {"name": name[1]}}]


def debian_component(package):
    fields = output("dpkg-query", "-W", "-f=${Version}\t${source:Package}\t${source:Upstream-Version}\t${Architecture}", package)
    version, source, upstream, architecture = fields.split("\n")[0].split("\t")
    return {
        "type": "library",
        "name": source,
        "version": upstream,
        "licenses": debian_licences(package, source),
        "purl": f"pkg:deb/{distribution()}/{package}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}",
    }


def distribution():
    return re.search(r'^ID="?([\w.-]+)', read("/etc/os-release"), re.M)[1]


def python_component(path):
    """Of a file inside an unpacked Python package that has a version of its own: torch, pyarrow."""
    match = re.match(r"(.*?/(torch|pyarrow))/", path)
    if not match:
        return None
    folder, name = match.groups()
    where = os.path.join(folder, "version.py" if name == "torch" else "_generated_version.py")
    version = re.search(r"""^(?:__version__|version)\s*=\s*(?:version\s*=\s*)?['"]([^'"]+)""", read(where), re.M)
    return {
        "type": "library",
        "name": name,
        "version": version[1],
        "licenses": [{"license": {"id": "BSD-3-Clause" if name == "torch" else "Apache-2.0"}}],
        "purl": f"pkg:pypi/{name}@{version[1].replace('+', '%2B')}",
    }


def components_of(paths):
    """path -> component without its part, for libraries and headers; says which files belong to nobody."""
    packages = debian_packages([p for p in paths if python_component(p) is None])
    made, found = {}, {}
    for path in sorted(paths):
        component = python_component(path)
        if component is None and path in packages:
            package = packages[path]
            if package not in made:
                made[package] = debian_component(package)
            component = made[package]
        if component is None:
            sys.exit(f"error: {path} is of no package of Debian's, torch's or pyarrow's, so its version and licence are not known")
        found[path] = component
    return found


def with_part(component, part, place="", digest=""):
    properties = [{"name": PART, "value": part}]
    if place:
        properties.append({"name": PLACE, "value": place})
    out = dict(component, properties=properties)
    out["bom-ref"] = f"{component['purl']}#{place or part}"
    if digest:
        out["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return out


def make(builds, root, version):
    """The bill of the package in root/tessera, whose programs were built in those folders. The same files make the same bill."""
    programs = [os.path.join(build, program) for build in builds for program in ("tessera", "tessera-worker")]
    files = {}
    for folder, _, names in os.walk(os.path.join(root, "tessera")):
        for name in names:
            files[os.path.relpath(os.path.join(folder, name), root)] = os.path.join(folder, name)
    packed = {os.path.basename(place): place for place in files if "/lib/" in place}
    libraries = libraries_of(programs)
    headers = set().union(*map(headers_of, builds))
    of = components_of(set(libraries.values()) | headers)
    components = {}
    for name, path in libraries.items():
        place = packed.get(name, "")
        made = with_part(of[path], PACKED if place else NEEDED, place, sha256(files[place]) if place else "")
        components[made["bom-ref"]] = made
    for path in headers:
        made = with_part(of[path], COMPILED)
        components[made["bom-ref"]] = made
    for place, path in files.items():
        if os.path.basename(place) in packed:
            continue
        components[place] = {
            "type": "application" if os.access(path, os.X_OK) else "file",
            "name": os.path.basename(place),
            "version": version,
            "bom-ref": place,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
            "hashes": [{"alg": "SHA-256", "content": sha256(path)}],
            "properties": [{"name": PART, "value": PACKED}, {"name": PLACE, "value": place}],
        }
    ordered = [components[key] for key in sorted(components)]
    name = f"pkg:pypi/tessera@{version.replace('+', '%2B')}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(ordered, sort_keys=True))),
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "tessera",
                "version": version,
                "bom-ref": name,
                "purl": name,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": ordered,
        "dependencies": [{"ref": name, "dependsOn": [c["bom-ref"] for c in ordered]}],
    }


def check(bill, root):
    """What is wrong with the bill of the package that lies in root/tessera, as lines of text."""
    wrong = []
    if (bill.get("bomFormat"), bill.get("specVersion")) != ("CycloneDX", "1.6"):
        wrong.append("it is not a CycloneDX 1.6 bill")
    listed = {}
    for component in bill.get("components", []):
        told = {p["name"]: p["value"] for p in component.get("properties", [])}
        for key in ("name", "version", "licenses"):
            if not component.get(key):
                wrong.append(f"{component.get('bom-ref')}: no {key}")
        if told.get(PART) == PACKED:
            listed[told.get(PLACE, "")] = component["hashes"][0]["content"] if component.get("hashes") else ""
        elif told.get(PART) not in (COMPILED, NEEDED):
            wrong.append(f"{component.get('bom-ref')}: it does not say what part it has")
    there = set()
    for folder, folders, names in os.walk(os.path.join(root, "tessera")):
        folders[:] = [name for name in folders if name != "__pycache__"]  # pip's
        there |= {os.path.relpath(os.path.join(folder, name), root) for name in names}
    wrong += [f"{place}: a file that the bill does not have" for place in sorted(there - set(listed))]
    wrong += [f"{place}: the bill has it, the package does not" for place in sorted(set(listed) - there)]
    wrong += [f"{place}: its SHA-256 is another" for place in sorted(there & set(listed)) if sha256(os.path.join(root, place)) != listed[place]]
    needed = set()
    for place in there:
        if not place.endswith(".py"):
            needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", os.path.join(root, place))))
    libraries = {os.path.basename(place) for place in listed}
    outside = sum(1 for c in bill.get("components", []) if {"name": PART, "value": NEEDED} in c["properties"])
    if needed - libraries and outside == 0:
        wrong.append(f"nothing is said about the libraries that are not in the package: {' '.join(sorted(needed - libraries))}")
    return wrong


def main():
    if len(sys.argv) != 4 or sys.argv[1] != "check":
        sys.exit(__doc__)
    with open(sys.argv[2]) as file:
        bill = json.load(file)
    wrong = check(bill, sys.argv[3])
    for line in wrong:
        print(f"error: {sys.argv[2]}: {line}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"{sys.argv[2]}: {len(bill['components'])} components, as installed")


if __name__ == "__main__":
    main()
