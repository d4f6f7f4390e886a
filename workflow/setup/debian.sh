#!/bin/sh
# Sourced by scripts that need programs which no lock file brings: root on Debian gets Debian's packages, everyone else
# is told why tests skip. Sets nothing but these functions.

install_or_explain() { # who speaks, which tests, what is missing: one package a word
    speaker=$1 tests=$2 missing=$3
    [ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ] ||
        skip "not found: $missing; only Debian's packages are installed by themselves. Install them to run the tests"
    [ "$(id -u)" = 0 ] || skip "not found: $missing; only root may install it (apt-get install $missing)"

    echo "$speaker: installing Debian's $missing"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    forbid_daemons
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # one package a word
    { apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing; } \
        >"$scratch/apt.log" 2>&1 || { cat "$scratch/apt.log"; skip "apt-get could not install it (its message is above)"; }
}

skip() {
    echo "$speaker: $*; the $tests tests will skip"
    exit 0
}

forbid_daemons() { # Debian starts a server as it installs it, unless this file forbids it
    policy=/usr/sbin/policy-rc.d
    [ ! -e "$policy" ] || return 0
    trap 'rm -rf "$scratch" "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
}
