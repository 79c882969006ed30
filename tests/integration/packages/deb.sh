# The Debian packages: installed, used, upgraded while daemons run, removed.
path=/usr/bin:/bin
. /test/common.sh
export DEBIAN_FRONTEND=noninteractive

# All files, but for what dpkg and the system keep books in, and homes.
files() {
  find / -xdev \( -path /proc -o -path /dev -o -path /run -o -path /test -o -path /tmp -o -path /home -o -path /var/lib/dpkg -o -path /var/log \
    -o -path /var/cache/apt -o -path /var/cache/ldconfig \) -prune -o ! -name 'passwd*' ! -name 'group*' ! -name 'shadow*' ! -name 'gshadow*' \
    ! -name 'subuid*' ! -name 'subgid*' ! -name '.pwd.lock' ! -name ld.so.cache -print | sort
}
files >/tmp/files.before

# Where udev runs, it is told of its rule: here somebody notes what it is told.
mkdir -p /run/udev /tmp/told
printf '#!/bin/sh\necho "$*" >>/tmp/told/udev\n' >/tmp/told/udevadm
chmod +x /tmp/told/udevadm
PATH=/tmp/told:$PATH dpkg -i /test/before/*.deb >/tmp/dpkg.log 2>&1 || fail "not installed"
grep -q '^trigger .*userfaultfd' /tmp/told/udev || fail "udev is not told of its rule: $(cat /tmp/told/udev)"
rm -r /run/udev /tmp/told/udevadm
[ ! -e /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] || fail "the library stands for the machine's driver"
[ ! -e /etc/systemd/system/multi-user.target.wants/olmemserver.service ] || fail "a daemon lends unasked"
for page in README.md CHANGELOG.md LICENSE SECURITY.md docs/howto/install.md; do
  [ -e "/usr/share/doc/olpager/$page" ] || fail "documents that others link to are missing: $page"
done
[ ! -e /usr/share/doc/olpager/stale ] || fail "what an earlier run has left is in a package"
for package in olpager olpager-memserver olpager-simgpu; do
  [ -d "/usr/share/doc/$package/third-party" ] || fail "$package has no licences of the code that is inside"
done
systemctl enable olmemserver olgpunode >/tmp/systemctl.log 2>&1 || fail "units can't be enabled"

# As docs/howto/two-boxes.md has it, but for addresses.
mkdir /etc/olpager
for daemon in memserver gpunode; do
  olctl keygen --name ann --out /etc/olpager/$daemon.key >/dev/null
  [ $daemon = memserver ] || cp /etc/olpager/memserver.key /etc/olpager/gpunode.key
  chown "ol$daemon:" /etc/olpager/$daemon.key
  install -d -o ol$daemon -m 0700 /run/ol$daemon
done
install -o ann -m 0600 /etc/olpager/memserver.key $key
sed 's/^memory = .*/memory = "256MiB"/; s/^reserve = .*/reserve = "16MiB"/; s/0\.0\.0\.0/127.0.0.1/' /usr/share/olpager/olmemserver.toml >/etc/olpager/olmemserver.toml
sed 's/^memory = .*/memory = "256MiB"/; s/0\.0\.0\.0/127.0.0.1/' /usr/share/olpager/olgpunode.toml >/etc/olpager/olgpunode.toml

# What the unit says, as its user.
unit() {
  command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/$1.service)
  daemon "$1" setpriv --reuid="$1" --regid="$1" --clear-groups --bounding-set=-all env -i XDG_RUNTIME_DIR="/run/$1" OL_SIM_VRAM=64MiB \
    ${command%% \$*} $2
}
unit olmemserver "--cgroup none"
memserver=$pid
unit olgpunode "--driver sim"
gpunode=$pid
daemon second setpriv --reuid=1000 --regid=1000 --clear-groups env -i XDG_RUNTIME_DIR=/run/ann OL_SIM_VRAM=64MiB /usr/bin/olgpunode --driver sim \
  --listen 127.0.0.1:7072 --key $key --memory 256MiB
second=$pid
jobs_everywhere

# A program and the daemons are under way while all of it is replaced.
ann olrun --driver sim --vram 16MiB --host 48MiB --memserver 127.0.0.1:7070 --key $key -- /test/saxpy --bytes $bytes >/tmp/through.log 2>&1 &
through=$!
dpkg -i /test/*.deb >/tmp/dpkg.log 2>&1 || fail "not upgraded"
wait $through || fail "a program failed while it was upgraded"
kill -0 $memserver && kill -0 $gpunode || fail "a daemon ended while it was upgraded"
for name in olrun olctl olpagestat olbench olmemserver olgpunode; do
  [ "$($name --version)" = "$name $version" ] || fail "$name is not $version"
done
job --driver sim --vram 16MiB --host 48MiB --memserver 127.0.0.1:7070 --key $key
[ -e /etc/systemd/system/multi-user.target.wants/olmemserver.service ] || fail "an upgrade disables a unit"
[ -e /etc/olpager/olmemserver.toml ] || fail "an upgrade takes settings away"

# And with the daemons of the new version.
kill $memserver $gpunode $second
wait $memserver $gpunode $second || true
unit olmemserver "--cgroup none"
memserver=$pid
unit olgpunode "--driver sim"
gpunode=$pid
daemon second setpriv --reuid=1000 --regid=1000 --clear-groups env -i XDG_RUNTIME_DIR=/run/ann OL_SIM_VRAM=64MiB /usr/bin/olgpunode --driver sim \
  --listen 127.0.0.1:7072 --key $key --memory 256MiB
second=$pid
jobs_everywhere
kill $memserver $gpunode $second
wait $memserver $gpunode $second || true

# Nothing is left but keys and settings that were written by hand. Where systemd runs, it ends daemons first: one that notes what it is told.
mkdir -p /run/systemd/system
cat >/tmp/told/systemctl <<'SH'
#!/bin/sh
echo "$*" >>/tmp/told/words
case $1 in disable | is-*) exec /usr/bin/systemctl --root=/ "$@" ;; esac
SH
chmod +x /tmp/told/systemctl
PATH=/tmp/told:$PATH dpkg --purge olpager-memserver olpager-gpunode olpager-simgpu olpager >/tmp/dpkg.log 2>&1 || fail "not removed"
for name in olmemserver olgpunode; do
  grep -q "^stop $name.service$" /tmp/told/words || fail "$name is not ended: $(cat /tmp/told/words)"
done
rm -r /run/systemd/system
rm -rf /home/ann/.cache/olpager
files >/tmp/files.after
diff /tmp/files.before /tmp/files.after >/tmp/files.log || true
left=$(sed -n 's/^> //p' /tmp/files.log | tr '\n' ' ')
[ "$left" = "/etc/olpager /etc/olpager/gpunode.key /etc/olpager/memserver.key /etc/olpager/olgpunode.toml /etc/olpager/olmemserver.toml " ] ||
  fail "left: $left"
! getent passwd olmemserver olgpunode || fail "a user is left"
! getent group olpager || fail "the group is left"
[ "$(stat -c '%U %a' /etc/olpager/memserver.key)" = "root 600" ] || fail "the key is not root's"

# What somebody has made of the group and a user does not keep a package from going, also at a second try.
dpkg -i /test/olpager_*.deb /test/olpager-memserver_*.deb >/tmp/dpkg.log 2>&1 || fail "not installed again"
useradd --gid olpager bert
setpriv --reuid=olmemserver --regid=olmemserver --clear-groups sleep 1000 &
sleeper=$!
until [ "$(stat -c %U /proc/$sleeper)" = olmemserver ]; do sleep 0.1; done
for try in 1 2; do
  dpkg --purge olpager-memserver olpager >/tmp/dpkg.log 2>&1 || fail "not removed"
done
kill $sleeper
wait $sleeper || true
userdel olmemserver
userdel bert
