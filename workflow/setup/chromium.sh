#!/bin/sh
# Sees to a Chromium for the browser tests, and to libatomic, which their driver needs on aarch64: root on Debian gets
# Debian's own, everyone else is told why the tests skip.
set -eu

missing=libatomic1
if PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q 'libatomic\.so\.1'; then missing=; fi
found=
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then found=$name; fi
done
[ -n "$found" ] || missing="chromium${missing:+ $missing}"
[ -n "$missing" ] || exit 0

skip() {
    echo "chromium: $*; the browser tests will skip"
    exit 0
}

[ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ] ||
    skip "not found: $missing; only Debian's packages are installed by themselves. Install them to run the tests"
[ "$(id -u)" = 0 ] || skip "not found: $missing; only root may install it (apt-get install $missing)"

echo "chromium: installing Debian's $missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # one package a word
{ apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing; } \
    >"$log" 2>&1 || { cat "$log"; skip "apt-get could not install it (its message is above)"; }
