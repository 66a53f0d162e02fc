#!/usr/bin/env bash
# Run the tests on a Python that is newer than this machine's: Debian unstable's, in a folder of its own.
#
#   tests/newest_python.sh 3.14                     make the folder if it is not there, and run `python -m pytest` in it
#   tests/newest_python.sh 3.15 tests/processes -k spawn     the same with arguments for pytest
#   tests/newest_python.sh 3.14 -- python -m tests.chaos --minutes 60     run that command instead of pytest
#   tests/newest_python.sh --has 3.15               exit with 0 if the folder is there, and do nothing
#
# Needs Linux, root, debootstrap (`apt-get install debootstrap`), a Debian mirror (DEBIAN_MIRROR, or the one that this
# machine's own apt sources name) and pip's index as this machine has it. The folder is made once (1 GB, some minutes), in
# ${XDG_CACHE_HOME:-~/.cache}/supervise/debian; to have newer versions, delete it. The run gets /proc, /dev, a pid namespace
# and a copy of this checkout, so that nothing of the run is left outside.
set -euo pipefail

root=${XDG_CACHE_HOME:-$HOME/.cache}/supervise/debian
checkout=$(cd "$(dirname "$0")/.." && pwd)

if [[ ${1:-} == --has ]]; then
    [[ $(id -u) == 0 && -x $root/venv-$2/bin/pytest ]]
    exit
fi
version=${1:?usage: tests/newest_python.sh VERSION [PYTEST ARGUMENT...]}
shift

# Prints the mirror that this machine's apt uses for Debian itself.
mirror() {
    sed -n -E 's/^(URIs:|deb( \[[^]]*\])?) *(https?:[^ ]*\/debian)\/?( .*)?$/\3/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1
}

# Becomes a command in the folder, with pip's settings of this machine and a pid namespace: it ends with all it started.
inside() {
    exec unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
        root=$1 checkout=$2; shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mkdir -p "$root/checkout" && mount -t tmpfs tmpfs "$root/checkout"
        tar -C "$checkout" --exclude=./.git --exclude=__pycache__ --exclude=./.venv -cf - . | tar -C "$root/checkout" --no-same-owner -xf -
        chroot "$root" "$@"  # not exec: this shell is the init that reaps
    ' bash "$root" "$checkout" "$@"
}

make_folder() {
    local from=${DEBIAN_MIRROR:-$(mirror)}
    [[ -n $from ]] || { echo "no Debian mirror in this machine's apt sources: set DEBIAN_MIRROR" >&2; exit 1; }
    rm -rf "$root" "$root.new"
    mkdir -p "$root.new"
    debootstrap --variant=minbase unstable "$root.new" "$from" >"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; exit 1; }
    mv "$root.new" "$root"
}

step() { printf '%s\n' "$*" >&2; }

[[ -d $root ]] || { step "making $root"; make_folder; }
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
[[ ! -f $certificates ]] || cp -L "$certificates" "$root/etc/certificates.pem"
settings=(
    -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" DEBIAN_FRONTEND=noninteractive PIP_CERT=/etc/certificates.pem
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1 ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"}
    PATH="/venv-$version/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

if [[ ! -x $root/venv-$version/bin/pytest ]]; then
    step "installing Python $version and the tests' tools"
    (inside /usr/bin/env "${settings[@]}" bash -euo pipefail -c '
        # A mirror may lag behind; the signatures of what it serves are checked all the same
        apt-get -qq -o Acquire::Check-Valid-Until=false update
        apt-get -qq install -y --no-install-recommends "python$1" "python$1-venv" "python$1-dev" \
            gcc g++ libc6-dev procps psmisc util-linux iproute2 ca-certificates
        "python$1" -m venv "/venv-$1"
        cd /checkout
        pip install -qq -U pip
        pip install -qq --group dev  # what has no wheel for this Python yet is compiled
    ' bash "$version") >"$root/install-$version.log" 2>&1 || { tail -n 30 "$root/install-$version.log" >&2; exit 1; }
fi

inside /usr/bin/env "${settings[@]}" bash -euo pipefail -c '
    cd /checkout
    pip install -qq --no-deps --no-build-isolation -e . 2>/dev/null || pip install -qq -e .
    pip install -qq --group dev  # also what was added after the folder was made
    python --version
    if [[ ${1:-} == -- ]]; then "${@:2}"; else python -m pytest "$@"; fi
' bash "$@"
