#!/bin/bash
# What systemd says of a unit file, with the program where it was built: nothing. unit_file.sh SYSTEMD-ANALYZE UNIT PROGRAM
set -eu
program=$(realpath "$3")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unit=$folder/$(basename "$2")
sed "s#^ExecStart=[^ ]*#ExecStart=$program#" "$2" >"$unit"
grep -q "^ExecStart=$program" "$unit"
said=$("$1" verify --man=no "$unit" 2>&1 | grep -F "$(basename "$unit")" || true)
[ -z "$said" ] || { echo "$said"; exit 1; }
# Who tells of all users' programs has to see their files below /run/user, and to become each of them with that user's group.
case $(basename "$2") in
  olpager-exporter.service)
    grep -Eq '^ProtectHome=(no|read-only)$' "$2" || { echo "it does not see /run/user"; exit 1; }
    ! grep -q '^PrivateTmp=yes' "$2" || { echo "it does not see /tmp"; exit 1; }
    for capability in CAP_SETUID CAP_SETGID CAP_DAC_READ_SEARCH; do
      grep -q "^CapabilityBoundingSet=.*$capability" "$2" || { echo "it lacks $capability"; exit 1; }
    done
    ;;
esac
