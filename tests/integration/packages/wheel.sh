# The wheel: in a venv of an ordinary user, without an index; used, upgraded while a daemon runs, removed.
path=/home/ann/venv/bin:/usr/bin:/bin
. /test/common.sh

ann python3 -m venv /home/ann/venv
pip() { ann pip "$@" --no-index --quiet --disable-pip-version-check; }
pip install /test/*.whl || fail "not installed"
for name in olrun olctl olpagestat olmemserver olgpunode; do
  [ "$(ann $name --version)" = "$name $version" ] || fail "$name is not $version"
done

rm -f $key
ann olctl keygen --name ann --out $key >/dev/null
daemon memserver ann olmemserver --listen 127.0.0.1:7070 --key $key --memory 256MiB --reserve 16MiB --cgroup none
daemon gpunode1 ann olgpunode --driver sim --listen 127.0.0.1:7071 --key $key --memory 256MiB
daemon gpunode2 ann olgpunode --driver sim --listen 127.0.0.1:7072 --key $key --memory 256MiB
jobs_everywhere

# What Python starts, and what it did to its own environment.
cat >/tmp/configured.py <<'PYTHON'
import os, subprocess, sys, olpager
before = dict(os.environ)
with olpager.configured(driver="sim", vram="16MiB", host="48MiB", memserver=["127.0.0.1:7070"], key=sys.argv[1]):
    subprocess.run(["/test/saxpy", "--bytes", sys.argv[2]], check=True)
assert os.environ == before
try:
    olpager.environment(vram="7")
except olpager.Refused as refused:
    assert "--vram" in str(refused), refused
else:
    raise SystemExit("a budget of 7 bytes is taken")
for gpunode in ("local", ["127.0.0.1:7071", "local"], "localhost:1"):
    try:
        olpager.environment(gpunode=gpunode, key=sys.argv[1])
    except olpager.Refused as refused:
        # A host whose name begins so is another one.
        assert ("gpunode local ends" in str(refused)) == (gpunode != "localhost:1"), refused
    else:
        raise SystemExit(f"gpunode {gpunode} is taken")
assert olpager.__version__ == sys.argv[3]
PYTHON
ann python /tmp/configured.py $key $bytes "$version" >/tmp/job.log 2>&1 || fail "olpager.configured failed"
grep -q '^OK saxpy' /tmp/job.log || fail "olpager.configured: a wrong result"

pip install --force-reinstall /test/*.whl || fail "not upgraded"
job --driver sim --vram 16MiB --host 48MiB --memserver 127.0.0.1:7070 --key $key

ann pip uninstall --yes --quiet olpager || fail "not removed"
left=$(find /home/ann/venv \( -name 'ol*' -o -name 'libcuda*' \) ! -path '*/pip/*')
[ -z "$left" ] || fail "left: $left"
