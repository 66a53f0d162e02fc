#!/usr/bin/env bash
# Run the tests with the oldest dependencies that pyproject.toml allows: each `NAME>=BOUND` of the package, of its extras
# and of the group `dev` in the version BOUND.
#
#   tests/lower_bounds.sh                     run `python -m pytest`
#   tests/lower_bounds.sh tests/runtime -k tail     the same with arguments for pytest
#
# Needs the environment of CONTRIBUTING.md, active, and a package index. The old versions lie in an environment of their own,
# in a temporary directory, which has all other packages of the active one.
set -euo pipefail
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Tools that only check or build read no file of a test run, and Ray has tests of its own: see CONTRIBUTING.md.
mapfile -t pins < <(python - <<'PYTHON'
import re
import tomllib

settings = tomllib.load(open("pyproject.toml", "rb"))
project = settings["project"]
wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), []), *settings["dependency-groups"]["dev"]]
bounds = dict(match.groups() for each in wanted if (match := re.match(r"([\w-]+)>=([\d.]+)", each)))
for name in ("ray", "mypy", "sphinx", "myst-parser"):
    del bounds[name]
print(*sorted(f"{name}=={bound}" for name, bound in bounds.items()), sep="\n")
PYTHON
)
python -m venv --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python -m pip --python "$work/venv/bin/python" install -qq --no-deps "${pins[@]}" -e .
python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/the_other_packages.pth"
printf '%s\n' "${pins[@]}"
PATH=$work/venv/bin:$PATH
python -m pytest "$@"
