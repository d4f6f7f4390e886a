#!/bin/sh
# Sees to a Chromium for the browser tests: root on Debian gets Debian's own, everyone else is told why they skip.
set -eu

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

skip() {
    echo "chromium: $*; the browser tests will skip"
    exit 0
}

[ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ] ||
    skip "none found, and only Debian's is installed by itself. Install Chromium to run them"
[ "$(id -u)" = 0 ] || skip "none found, and only root may install it (apt-get install chromium)"

echo "chromium: installing Debian's package"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
{ apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends chromium; } \
    >"$log" 2>&1 || { cat "$log"; skip "apt-get could not install it (its message is above)"; }
