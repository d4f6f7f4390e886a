#!/bin/sh
# Sees to a Chromium for the browser tests, and to libatomic, which their driver needs on aarch64. Debian's headless one
# has the same engine as the whole browser, and runs the tests in half the time.
set -eu
. "$(dirname "$0")/debian.sh"

missing=libatomic1
if PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q 'libatomic\.so\.1'; then missing=; fi
found=
for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then found=$name; fi
done
[ -n "$found" ] || missing="chromium-headless-shell${missing:+ $missing}"
[ -z "$missing" ] || install_or_explain chromium browser "$missing"
