#!/usr/bin/env python3
"""Makes the wheel of an installation: the programs and libraries as files of the Python package `olpager`.

wheel.py --stage PREFIX --libdir LIBDIR --version VERSION --out FOLDER

A wheel holds no links, and is unpacked wherever Python has its packages. So
  - libolpager.so and libolnvml.so lie under the driver's names alone, in the folders that programs get in LD_LIBRARY_PATH
    (base/locate.cpp looks there). Behind a second name of the driver's is a library that only needs the first.
  - what is not of every Linux is carried: oneTBB, in a folder that olmemserver alone looks in.
The tag says which glibc the files need: it is read from them.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parent.parent
PROGRAMS = ["olctl", "olgpunode", "olmemserver", "olpagestat", "olrun"]
# Libraries that a wheel of this kind may take for granted: glibc's, and for carried ones the C++ runtime.
GRANTED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
GRANTED_OF_CARRIED = GRANTED | {"libstdc++.so.6", "libgcc_s.so.1"}
# Of manylinux_2_34: what its C++ runtime has.
NEWEST = {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def needed(file):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)))


def versions(file, library):
    """The versions of a library's symbols that a file needs."""
    found = re.findall(rf"\b{library}_([0-9.]+)\b", output("objdump", "-T", file))
    return [tuple(map(int, one.split("."))) for one in found]


def carried(name):
    """Where this machine has a library."""
    for line in output("/sbin/ldconfig", "-p").splitlines():
        if line.split(" ", 1)[0].strip() == name and "x86-64" in line:
            return pathlib.Path(line.rsplit(" => ", 1)[1]).resolve()
    raise SystemExit(f"wheel: {name} is needed and not on this machine")


def second_name(folder, name, of):
    """A library `name` that has nothing but the need for `of` beside it."""
    subprocess.run(["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", folder / name, f"-Wl,-soname,{name}", "-Wl,--no-as-needed",
                    "-x", "none", folder / of, "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"], check=True, timeout=60)
    assert needed(folder / name) == {of}, needed(folder / name)


def package(stage, libdir, root):
    """The folder `olpager` of site-packages."""
    place = root / "olpager"
    shutil.copytree(HERE / "olpager", place, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("bin", "libexec/olpager", f"{libdir}/olpager/nvml"):
        (place / folder).mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(stage / "bin" / name, place / "bin" / name)
    shutil.copy(stage / "libexec/olpager/olgpunode-worker", place / "libexec/olpager")
    libraries = place / libdir / "olpager"
    shutil.copy(stage / libdir / "olpager/libolsimcuda.so", libraries)
    shutil.copy(stage / libdir / "olpager/libolpager.so", libraries / "libcuda.so.1")
    shutil.copy(stage / libdir / "olpager/nvml/libolnvml.so", libraries / "nvml/libnvidia-ml.so.1")
    binaries = [path for path in place.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    for path in binaries:
        subprocess.run(["strip", "--strip-unneeded", path], check=True, timeout=60)
    second_name(libraries, "libcuda.so", "libcuda.so.1")
    second_name(libraries / "nvml", "libnvidia-ml.so", "libnvidia-ml.so.1")

    beside = place / "lib/carried"
    for path in list(binaries):
        for name in sorted(needed(path) - GRANTED):
            beside.mkdir(exist_ok=True)
            if not (beside / name).exists():
                shutil.copy(carried(name), beside / name)
                binaries.append(beside / name)
                assert needed(beside / name) <= GRANTED_OF_CARRIED, f"{name} needs {needed(beside / name)}"
            up = pathlib.PurePath(*[".."] * len(path.parent.relative_to(place).parts))
            subprocess.run(["patchelf", "--set-rpath", f"$ORIGIN/{up}/lib/carried", path], check=True, timeout=60)
    for path in binaries:
        for library, newest in NEWEST.items():
            assert all(version <= newest for version in versions(path, library)), f"{path}: {library} of {max(versions(path, library))}"
    return max(version for path in binaries for version in versions(path, "GLIBC"))


def metadata(version, tag, stage, folder):
    folder.mkdir()
    readme = (SOURCES / "README.md").read_text()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: olpager\n"
        f"Version: {version}\n"
        "Summary: Runs CUDA programs whose memory does not fit the GPU, or that have no GPU at all\n"
        "License: Apache-2.0\nLicense-File: LICENSE\n"
        "Classifier: Operating System :: POSIX :: Linux\nClassifier: Environment :: GPU :: NVIDIA CUDA\n"
        "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n" + readme)
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: olpager-package\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\n" + "".join(f"{name} = olpager._commands:{name}\n" for name in PROGRAMS))
    (folder / "licenses").mkdir()
    shutil.copy(SOURCES / "LICENSE", folder / "licenses")
    third_party = folder / "licenses/third-party"
    shutil.copytree(stage / "share/doc/olpager/third-party", third_party)
    tbb = pathlib.Path("/usr/share/doc/libtbb12/copyright")
    if tbb.exists():
        shutil.copy(tbb, third_party / "libtbb12")


def written(root, wheel, info):
    """The zip with RECORD at its end. Times are fixed: the same files are the same wheel."""
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name, data = path.relative_to(root).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            add(name, data, 0o755 if data[:4] == b"\x7fELF" and b".so" not in path.name.encode() else 0o644)
        add(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n", 0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, required=True)
    parser.add_argument("--libdir", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        glibc = package(options.stage, options.libdir, root)
        (root / "olpager/_version.py").write_text(f'version = "{options.version}"\n')
        tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_x86_64"
        info = f"olpager-{options.version}.dist-info"
        metadata(options.version, tag, options.stage, root / info)
        wheel = options.out / f"olpager-{options.version}-{tag}.whl"
        written(root, wheel, info)
        print(wheel)


if __name__ == "__main__":
    main()
