# For deb.sh and wheel.sh, in the clean system: root is who runs this, ann is an ordinary user.
set -eu
bytes=134217728
key=/home/ann/key
version=$1

fail() {
  echo "$1" >&2
  cat /tmp/*.log >&2 2>/dev/null || true
  exit 1
}

# As ann, in a shell's environment of hers.
ann() { setpriv --reuid=1000 --regid=1000 --clear-groups env -i HOME=/home/ann PATH="$path" OL_SIM_VRAM=64MiB XDG_RUNTIME_DIR=/run/ann "$@"; }

# A daemon in the background, once it listens: LOG COMMAND...
daemon() {
  log=/tmp/$1.log
  shift
  "$@" >"$log" 2>&1 &
  pid=$!
  tries=0
  until grep -qs listening "$log"; do
    kill -0 $pid 2>/dev/null || fail "$1 ended"
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "$1 does not listen"
    sleep 0.1
  done
}

# The demo's program on the simulated GPU: on ARGUMENTS... of olrun.
job() {
  ann olrun "$@" -- /test/saxpy --bytes $bytes >/tmp/job.log 2>&1 || fail "olrun $* failed"
  grep -q '^OK saxpy' /tmp/job.log || fail "olrun $*: a wrong result"
}

# Paged, with a memserver, without a GPU, and over two gpunodes.
jobs_everywhere() {
  job --driver sim --vram 16MiB --host 512MiB
  job --driver sim --vram 16MiB --host 48MiB --memserver 127.0.0.1:7070 --key $key
  job --gpunode 127.0.0.1:7071 --key $key
  job --view unified --gpunode 127.0.0.1:7071 --gpunode 127.0.0.1:7072 --key $key
}

id ann >/dev/null 2>&1 || useradd --uid 1000 --create-home ann
install -d -o ann -m 0700 /run/ann
