# Sourced by the other scripts: creates .venv beside pyproject.toml if needed and installs the project into it.
# Nothing is installed again until pyproject.toml or the wanted extras change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or newer is needed; set PYTHON to its path." >&2
    return 1
}

install_project() { # $1: extras such as "[test]", or nothing
    local python stamp=".venv/installed$1" wanted
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python)
        echo "Creating .venv with $("$python" --version) ..."
        "$python" -m venv .venv
    fi
    wanted=$(cksum <pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing jaxrl-buffers$1 (once) ..."
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$1"
        echo "$wanted" >"$stamp"
    fi
}
