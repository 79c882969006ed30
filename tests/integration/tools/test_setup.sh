#!/bin/bash
# tools/setup with stand-ins for dpkg-query, apt-get, sudo and id: what it installs, how often, and as whom.
# shellcheck disable=SC2016  # the stand-ins expand when they run
set -euo pipefail
setup=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# $MISSING: packages that are not there. The real one also tells of what was removed, and fails where one is not known.
stand_in dpkg-query 'for p in "${@:4}"; do
  case " $MISSING " in *" $p "*) echo "$p config-files" ;; *) echo "$p installed" ;; esac
done
[ -z "$MISSING" ]'
stand_in apt-get 'echo "apt-get $*" >>"$LOG"'
stand_in sudo 'echo sudo >>"$LOG"; exec "$@"'
stand_in id 'echo "$FAKE_UID"'
export LOG=$work/log

run() { # run UID MISSING...: leaves what was called in $LOG
  : >"$LOG"
  FAKE_UID=$1 MISSING="${*:2}" PATH="$work/bin:$PATH" "$setup" >"$work/out" 2>&1
}
expect() {
  if [ "$(cat "$LOG")" != "$1" ]; then
    printf 'expected:\n%s\ngot:\n%s\noutput:\n%s\n' "$1" "$(cat "$LOG")" "$(cat "$work/out")"
    exit 1
  fi
}

run 0
expect ""

install="apt-get install -y -qq --no-install-recommends"
run 0 meson catch2
expect "apt-get update -qq
$install meson catch2"

run 1000 libcli11-dev
expect "sudo
apt-get update -qq
sudo
$install libcli11-dev"

run 1000 clang-tidy # not needed to build
expect ""

# Neither root nor sudo: a line that names the packages, nothing installed.
mkdir "$work/few"
for tool in bash dirname readlink head env sed; do ln -s "$(command -v $tool)" "$work/few/$tool"; done
rm "$work/bin/sudo"
: >"$LOG"
if FAKE_UID=1000 MISSING=meson PATH="$work/bin:$work/few" "$setup" >"$work/out" 2>&1; then
  echo "it went on without the package"
  exit 1
fi
expect ""
grep -q "apt-get install meson" "$work/out"
echo "tools/setup: as it should"
