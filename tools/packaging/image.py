#!/usr/bin/env python3
"""Makes OCI images of the Debian packages, without a container engine: Debian 12 by mmdebstrap is the first layer of each, what installing
the packages changes there is the second.

image.py --packages FOLDER --version VERSION --out FOLDER [NAME...]

An image is an archive OUT/NAME_VERSION_amd64.oci.tar: an OCI layout (podman load, skopeo, ctr, umoci) that holds Docker's list as well
(docker load). The same packages make the same image, as far as Debian's archive is the same.
IMAGES is all that is said of an image besides its packages; tests read it.
"""
import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tarfile
import tempfile

SUITE = "bookworm"
# As Debian's own slim images: licences are kept, and documents of ours.
SLIM = ["path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright", "path-include=/usr/share/doc/olpager*/*",
        "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*", "path-exclude=/usr/share/locale/*"]
# What the packages' scripts make users with, so that apt does not take all of systemd for it.
INCLUDED = ["systemd-standalone-sysusers"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

IMAGES = {
    "olpager": {
        "packages": ["olpager", "olpager-simgpu"],
        "about": "olrun and the library: CUDA programs whose memory does not fit the GPU, or that have no GPU",
        "command": ["olrun", "--help"],
    },
    "olpager-memserver": {
        "packages": ["olpager-memserver"],
        "about": "olmemserver: lends this machine's RAM to CUDA programs under olpager",
        "user": ("olmemserver", 7070),
        "folders": ["/run/olmemserver"],
        "environment": {"XDG_RUNTIME_DIR": "/run/olmemserver"},
        "port": 7070,
        "command": ["olmemserver", "--listen", "0.0.0.0:7070", "--key", "/etc/olpager/memserver.key"],
    },
    "olpager-gpunode": {
        "packages": ["olpager", "olpager-gpunode", "olpager-simgpu"],
        "about": "olgpunode: runs the GPU work of programs on other machines",
        "user": ("olgpunode", 7071),
        "folders": ["/run/olgpunode", "/var/cache/olpager"],
        # The first two: NVIDIA's container toolkit gives the driver's libraries by them.
        "environment": {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "XDG_RUNTIME_DIR": "/run/olgpunode"},
        "port": 7071,
        "command": ["olgpunode", "--listen", "0.0.0.0:7071", "--key", "/etc/olpager/gpunode.key", "--cache", "/var/cache/olpager"],
    },
}


def mmdebstrap(*arguments):
    if shutil.which("mmdebstrap") is None:
        raise SystemExit("image: mmdebstrap is missing: tools/setup --package")
    made = subprocess.run(["mmdebstrap", "--quiet", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if made.returncode != 0:
        lines = made.stderr.strip().splitlines()
        raise SystemExit("\n".join(["image: mmdebstrap failed:", *lines[-20:]]))


def base_system(file):
    # Its lists of packages serve all images, and are in none of them.
    mmdebstrap("--variant=minbase", "--format=tar", "--skip=cleanup/apt/lists", f"--include={','.join(INCLUDED)}", *[f"--dpkgopt={line}" for line in SLIM], SUITE, str(file))


def installed(base, image, packages, file):
    """The base with the packages in it."""
    steps = []
    if "user" in image:
        name, number = image["user"]
        # The number is a promise: a key that is mounted belongs to it.
        steps.append(f"groupadd --system --gid {number} {name}")
        steps.append(f"useradd --system --uid {number} --gid {number} --home-dir / --no-create-home --shell /usr/sbin/nologin {name}")
    steps += ["apt-get -qq -y --no-install-recommends install /packages/*.deb", "rm -rf /packages", "install -d -m 0755 /etc/olpager"]
    for folder in image.get("folders", []):
        steps.append(f"install -d -m 0700 -o {number} -g {number} {folder}")
    copies = [f"--customize-hook=copy-in {' '.join(shlex.quote(str(one)) for one in packages)} /packages"]
    script = "export DEBIAN_FRONTEND=noninteractive; set -e; " + "; ".join(steps)
    mmdebstrap("--variant=custom", "--format=tar", "--skip=cleanup/run", f"--setup-hook=tar -C \"$1\" -xf {shlex.quote(str(base))}",
               '--customize-hook=mkdir "$1/packages"', *copies, f"--customize-hook=chroot \"$1\" sh -c {shlex.quote(script)}", "", str(file), "")


# In no layer: what an engine makes by itself; files that installing leaves for the next time.
OF_ENGINES = ("dev/", "proc/", "sys/")
CACHES = ("var/lib/apt/lists/", "var/cache/apt/", "var/cache/ldconfig/", "var/log/")


def place(name):
    """A member's path in a layer."""
    return name[2:] if name.startswith("./") else name


def belongs(path, member):
    if path in ("", ".") or any(path.startswith(one) and path != one for one in OF_ENGINES):
        return False
    return member.isdir() or not path.startswith(CACHES)


def members(file):
    """Of a system's archive: path, member, and what makes it the same as another system's."""
    with tarfile.open(file) as archive:
        for member in archive:
            path = place(member.name)
            if not belongs(path, member):
                continue
            data = archive.extractfile(member).read() if member.isreg() else b""
            same = (member.type, member.mode, member.uid, member.gid, member.linkname, hashlib.sha256(data).digest(),
                    member.pax_headers.get("SCHILY.xattr.security.capability"))
            yield path, member, data, same


def written(path, chosen, removed=()):
    """A layer. Whiteouts of what is no longer there come first."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        for gone in sorted(removed):
            folder, _, name = gone.rpartition("/")
            marker = tarfile.TarInfo(f"{folder}/.wh.{name}" if folder else f".wh.{name}")
            marker.mtime = epoch()
            layer.addfile(marker)
        for name, member, data in chosen:
            member.name = name
            if member.islnk():
                member.linkname = place(member.linkname)
            member.uname = member.gname = ""
            member.mtime = min(int(member.mtime), epoch())
            member.pax_headers = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
            layer.addfile(member, io.BytesIO(data) if member.isreg() else None)


def epoch():
    return int(os.environ["SOURCE_DATE_EPOCH"])


def base_layer(system, path):
    there = {}

    def chosen():
        for name, member, data, same in members(system):
            there[name.rstrip("/")] = same
            yield name, member, data

    written(path, chosen())
    return there


def changed_layer(system, there, path):
    left = dict(there)
    chosen = []
    for name, member, data, same in members(system):
        if left.pop(name.rstrip("/"), None) != same:
            chosen.append((name, member, data))
    # Of a folder that is gone its own name is enough.
    removed = [name for name in left if not any(name.startswith(other + "/") for other in left)]
    written(path, chosen, removed)


class Layer:
    """As an image has it: packed, with the digest of what it was, and how it was made."""

    def __init__(self, tar, made_by):
        data = tar.read_bytes()
        self.packed = gzip.compress(data, 6, mtime=0)
        self.digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.made_by = made_by


class Layout:
    """An OCI layout in a folder."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)

    def blob(self, data, kind):
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def json_blob(self, value, kind):
        return self.blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), kind)

    def layer(self, layer):
        return self.blob(layer.packed, "application/vnd.oci.image.layer.v1.tar+gzip")

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))

    def archive(self, file):
        """The layout as one file, in an order of its own."""
        with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
            paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
            for path in sorted(paths, key=lambda path: path.name != "oci-layout"):
                entry = tarfile.TarInfo(path.relative_to(self.folder).as_posix())
                entry.size, entry.mode, entry.mtime = path.stat().st_size, 0o644, epoch()
                with open(path, "rb") as data:
                    archive.addfile(entry, data)


def image_of(name, image, version, layers, out):
    """The image's archive. `layers`: the bottom one first."""
    tag = version.replace("+", "-")
    created = datetime.datetime.fromtimestamp(epoch(), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0",
              "org.opencontainers.image.description": image["about"]}
    config = {"Cmd": image["command"], "Labels": labels,
              "Env": [f"{key}={value}" for key, value in {"PATH": PATH, **image.get("environment", {})}.items()]}
    if "user" in image:
        # By number: an engine need not read the image's list of users.
        config["User"] = "{0}:{0}".format(image["user"][1])
    if "port" in image:
        config["ExposedPorts"] = {f"{image['port']}/tcp": {}}
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(pathlib.Path(folder, "layout"))
        described = [layout.layer(layer) for layer in layers]
        configuration = layout.json_blob({
            "architecture": "amd64", "os": "linux", "created": created, "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [{"created": created, "created_by": layer.made_by} for layer in layers]}, "application/vnd.oci.image.config.v1+json")
        manifest = layout.json_blob({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": configuration,
            "layers": described, "annotations": labels}, "application/vnd.oci.image.manifest.v1+json")
        manifest["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"localhost/{name}:{tag}"}
        manifest["platform"] = {"architecture": "amd64", "os": "linux"}
        layout.write("index.json", {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]})
        layout.write("oci-layout", {"imageLayoutVersion": "1.0.0"})
        inside = [one["digest"].replace("sha256:", "blobs/sha256/") for one in [configuration, *described]]
        layout.write("manifest.json", [{"Config": inside[0], "RepoTags": [f"{name}:{tag}"], "Layers": inside[1:]}])
        file = out / f"{name}_{version}_amd64.oci.tar"
        layout.archive(file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
        return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *IMAGES])
    options = parser.parse_args()
    if "SOURCE_DATE_EPOCH" not in os.environ:
        raise SystemExit("image: SOURCE_DATE_EPOCH is not set; tools/package sets it")
    # A comma or a space in a path is more than mmdebstrap's hooks can take; /tmp may be memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="olpager-image-") as folder:
        scratch = pathlib.Path(folder)
        scratch.chmod(0o755)  # another user of a namespace of its own reads there
        base_system(scratch / "base.tar")
        there = base_layer(scratch / "base.tar", scratch / "layer.tar")
        base = Layer(scratch / "layer.tar", f"mmdebstrap --variant=minbase {SUITE}")
        for name in options.names or IMAGES:
            image = IMAGES[name]
            packages = []
            for package in image["packages"]:
                packages.append(options.packages / f"{package}_{options.version}_amd64.deb")
                if not packages[-1].exists():
                    raise SystemExit(f"image: {packages[-1]} is missing: tools/package --deb")
                shutil.copy(packages[-1], scratch)
            installed(scratch / "base.tar", image, [scratch / package.name for package in packages], scratch / "system.tar")
            changed_layer(scratch / "system.tar", there, scratch / "layer.tar")
            changed = Layer(scratch / "layer.tar", f"apt-get install {' '.join(package.name for package in packages)}")
            print(image_of(name, image, options.version, [base, changed], options.out))


if __name__ == "__main__":
    main()
