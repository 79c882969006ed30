#!/usr/bin/env python3
"""What tools/docker/Dockerfile takes for granted, without building an image: what it copies is there and let through by .dockerignore, as is all
that meson.build asks for; the programs that its images start are installed where it looks; their libraries are in the images.

dockerfile.py SOURCES BUILD
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

sources, build = map(pathlib.Path, sys.argv[1:])
# What debian:12-slim has by itself (libc, and what apt needs).
OF_THE_BASE = {"libc6", "libstdc++6", "libgcc-s1"}

context = set()
for line in (sources / ".dockerignore").read_text().splitlines():
    if line.startswith("!"):
        context.add(line[1:])
        assert (sources / line[1:]).exists(), f".dockerignore lets {line[1:]} through, which is not there"
    else:
        # Else it is not all that is let through by name.
        assert line in ("", "*", "**/__pycache__") or line.startswith("#"), f".dockerignore: {line}"


def in_context(path):
    return (sources / path).exists() and pathlib.PurePath(path).parts[0] in context


for folder in re.findall(r"^\s*subdir\('(\w+)'\)", (sources / "meson.build").read_text(), re.M):
    assert folder == "tests" or in_context(folder), f"{folder} is built, and .dockerignore keeps it out"
for name in ("meson.build", "meson_options.txt"):
    assert in_context(name), name

text = (sources / "tools/docker/Dockerfile").read_text().replace("\\\n", "")
prefix = re.search(r"--prefix=(\S+)", text).group(1)
introspected = json.loads((build / "meson-info/intro-buildoptions.json").read_text())
own_prefix = next(option["value"] for option in introspected if option["name"] == "prefix")
built = json.loads((build / "meson-info/intro-installed.json").read_text())
installed = {place.replace(own_prefix, prefix, 1): made for made, place in built.items()}
# What is installed as it lies in the sources has to be there where the images are built.
for made in map(pathlib.Path, built):
    if made.is_relative_to(sources) and not made.is_relative_to(build):
        assert in_context(made.relative_to(sources)), f"{made.relative_to(sources)} is installed, and .dockerignore keeps it out"


def libraries(program):
    """The packages of the libraries that it names, as far as this machine has them from packages."""
    said = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, timeout=30, check=True).stdout
    packages = set()
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said):
        owner = subprocess.run(["dpkg-query", "-S", f"*/lib/x86_64-linux-gnu/{name}"], capture_output=True, text=True, timeout=30).stdout
        packages |= {line.split(":")[0] for line in owner.splitlines()}
    return packages


stages, images = {}, []
for stage in re.split(r"^FROM ", text, flags=re.M)[1:]:
    name = re.match(r"\S+ AS (\w+)\n", stage).group(1)
    for taken in re.findall(r"from=(\w+)", stage):
        assert taken in stages, f"{name} takes from {taken}, which is no stage before it"
    for what in re.findall(r"^COPY (?!--)(.*) \S+$", stage, re.M):
        for path in what.split():
            assert path == "." or in_context(path), f"{name} copies {path}, which is not there or kept out by .dockerignore"
    assert all(path == prefix for path in re.findall(r"^COPY --from=build (\S+)", stage, re.M))
    stages[name] = stage
    command = re.search(r'^CMD \["([\w-]+)"', stage, re.M)
    if command is None:
        continue
    images.append(name)
    assert f"--target {name} " in text, f"no line says how {name} is built"
    place = f"{prefix}/bin/{command.group(1)}"
    assert place in installed, f"{name} starts {command.group(1)}, which is not installed"
    assert re.search(rf"^ENV (.* )?PATH={prefix}/bin:", stage, re.M), f"{name}: its programs are not on PATH"
    if shutil.which("dpkg-query") and shutil.which("readelf"):
        lacking = {package for package in libraries(installed[place]) - OF_THE_BASE if f" {package} " not in stage}
        assert not lacking, f"{name} has no {sorted(lacking)}"
assert sorted(images) == ["client", "olgpunode", "olmemserver"], images
