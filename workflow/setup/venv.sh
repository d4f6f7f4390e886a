#!/bin/sh
# Makes .venv with uv inside it, wherever there is Python 3.11 or newer. A fresh Debian has neither pip nor
# ensurepip, so pip is looked for in four places. A working .venv is kept: a second run changes nothing. One that was
# moved or copied is made anew.
set -eu
cd "$(dirname "$0")/../.."

main() {
    check_machine
    find_python
    { is_recent .venv/bin/python && is_in_place; } || make_venv
    locked_uv >.venv/uv.txt
    has_locked_uv || install_uv
}

check_machine() {
    case "$(uname -s) $(uname -m)" in
        "Linux x86_64" | "Linux aarch64") ;;
        *) fail "found $(uname -s) on $(uname -m), expected Linux on x86_64 or aarch64: requirements.lock serves" \
            "those two. Run this on such a machine, or in a container of one." ;;
    esac
}

find_python() {
    for name in python3 python3.13 python3.12 python3.11; do
        python=$(command -v "$name") || continue
        if is_recent "$python"; then
            first_python=$python
            prefer_optimised
            return
        fi
    done
    found=$(python3 --version 2>/dev/null) || found="no python3"
    fail "found $found, expected Python 3.11 or newer. Install one (Debian 12: apt-get install python3)" \
        "and put it on PATH as python3 or python3.11."
}

# pyenv builds Python without optimisation unless told otherwise. Another one of the same version on PATH, such as the
# system's, then runs everything an eighth faster, with the same numbers.
prefer_optimised() {
    if is_optimised "$python"; then return; fi
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    old_ifs=$IFS
    IFS=:
    for folder in $PATH; do
        if is_optimised "$folder/$version"; then
            python=$folder/$version
            break
        fi
    done
    IFS=$old_ifs
}

# Built so by hand, or a distribution's own. Without its headers, torch.compile could not use it.
is_optimised() {
    "$1" -c '
import os, sys, sysconfig
is_fast = sys.base_prefix == "/usr" or "--enable-optimizations" in sysconfig.get_config_var("CONFIG_ARGS")
sys.exit(not (is_fast and os.path.exists(sysconfig.get_path("include") + "/Python.h")))' >/dev/null 2>&1
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

is_in_place() { # the scripts of a .venv name its Python by the full path, which the Makefile notes at the end
    place=$(cat .venv/.installed 2>/dev/null) || place=
    [ -z "$place" ] || [ "$place" = "$(cd .venv && pwd -P)" ] || { say ".venv was installed as $place" && false; }
}

make_venv() {
    say "creating .venv with $("$python" --version)"
    # With pip, this would stop half-way on a Debian that lacks python3-venv.
    "$python" -m venv --without-pip --clear .venv ||
        fail "found no usable venv module in $python. Install it (Debian: apt-get install python3-venv)."
}

locked_uv() { # uv's lines of the lock, so that pip checks the hashes; any uv when there is no lock yet
    if grep -q '^uv==' requirements.lock 2>/dev/null; then
        sed -n '/^uv==/,/[^\\]$/p' requirements.lock
    else
        echo uv
    fi
}

has_locked_uv() {
    installed=$(.venv/bin/uv --version 2>/dev/null | cut -d ' ' -f 2)
    wanted=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' .venv/uv.txt)
    [ -n "$installed" ] && [ "$installed" = "${wanted:-$installed}" ]
}

install_uv() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    pip_of_venv || pip_of_python || pip_of_debian_as_root || pip_of_debian_as_user ||
        fail "found no pip for $python, expected pip, ensurepip or apt-get to get one from." \
            "Install pip (Debian: apt-get install python3-venv; elsewhere: your system's pip package), then try again."
    say "installing uv with $pip_from"
    pip install -q --disable-pip-version-check -r .venv/uv.txt ||
        fail "pip could not install uv (its message is above). Check the network and pip's own configuration" \
            "(pip config list), then try again: what is done stays done."
    has_locked_uv || fail "pip ran, but .venv/bin/uv is not the locked version. Remove .venv and try again."
}

pip_of_venv() {
    pip_from="the pip that comes with Python"
    pip() { .venv/bin/python -m pip "$@"; }
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null 2>&1
}

pip_of_python() {
    pip_from="the pip of $first_python"
    pip() { "$first_python" -m pip --python .venv/bin/python "$@"; }
    pip --version >/dev/null 2>&1
}

pip_of_debian_as_root() {
    { [ "$(id -u)" = 0 ] && has_apt; } || return 1
    package=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    say "installing Debian's $package, for its pip"
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    { apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends "$package"; } \
        >"$scratch/apt.log" 2>&1 || return 1
    pip_of_venv
}

pip_of_debian_as_user() {
    has_apt || return 1
    pip_from="the pip of Debian's python3-pip-whl, unpacked for this once"
    say "downloading Debian's python3-pip-whl, for its pip"
    # Lists of its own: an ordinary user may not refresh the system's, and a fresh image has none.
    mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
    private_apt="apt-get -qq -o Dir::State::Lists=$scratch/lists -o Dir::Cache=$scratch/cache -o APT::Sandbox::User="
    { $private_apt update && (cd "$scratch" && $private_apt download python3-pip-whl) &&
        dpkg -x "$scratch"/python3-pip-whl_*.deb "$scratch"; } >"$scratch/apt.log" 2>&1 || return 1
    wheel=$(echo "$scratch"/usr/share/python-wheels/pip-*.whl)
    pip() { PYTHONPATH=$wheel .venv/bin/python -m pip "$@"; }
    pip --version >/dev/null 2>&1
}

has_apt() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null
}

say() {
    echo "setup: $*"
}

fail() {
    if [ -s "${scratch:-}/apt.log" ]; then cat "$scratch/apt.log" >&2; fi
    echo "setup: $*" >&2
    exit 1
}

main
