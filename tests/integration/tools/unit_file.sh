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
