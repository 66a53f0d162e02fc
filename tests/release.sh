#!/usr/bin/env bash
# Build what is released, from a copy of this checkout without ignored files, and check it.
#
#   tests/release.sh FOLDER      leave the sdist, the wheel and sbom.json, the dependencies with their licenses, in FOLDER
#
# Needs the tools of the group `release` (`pip install --group release`), git and a package index.
set -euo pipefail
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
mkdir -p "${1:?usage: tests/release.sh FOLDER}"
dist=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - | tar -C "$work/tree" -xf -
python -m build --outdir "$work/dist" "$work/tree" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
twine --no-color check --strict "$work"/dist/*
check-wheel-contents --toplevel supervise --package "$work/tree/supervise" "$work"/dist/*.whl
diff <(cd "$work/tree" && find . -type f -printf '%P\n' | sort) \
    <(tar -tzf "$work"/dist/*.tar.gz | sed -n 's|^[^/]*/||; /[^/]$/p' | grep -v -x PKG-INFO | sort) ||
    { echo "the sdist does not have the files of the checkout" >&2; exit 1; }

python -m venv --without-pip "$work/clean"
python -m pip --python "$work/clean/bin/python" install -qq "$work"/dist/*.whl
(
    cd "$work"
    "$work/clean/bin/python" -W error -c 'import supervise; print(supervise.__file__.removeprefix("'"$work"'/"))'
    "$work/clean/bin/supervise" --version
    HOME=$work "$work/clean/bin/supervise" run -q -n 2 -- true
    cyclonedx-py environment --pyproject "$work/tree/pyproject.toml" -o "$work/dist/sbom.json" "$work/clean/bin/python"
)
cp "$work"/dist/* "$dist"
