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

# Makes .venv-lowest, which has the oldest versions that pyproject.toml allows, of all that it names. With the oldest Python
# of those that are there, because old versions have no wheels for new ones.
install_lowest() {
    local folder=.venv-lowest python wanted
    python=$(PYTHON=${PYTHON:-python3.11} find_python)
    wanted=$(cksum <pyproject.toml)
    if [ "$(cat "$folder/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "Installing the oldest versions that are allowed, with $("$python" --version) (once) ..."
    "$python" -m venv --clear "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check uv
    "$folder/bin/python" -m uv pip install --quiet --python "$folder/bin/python" --resolution lowest-direct \
        -r pyproject.toml --extra test
    "$folder/bin/python" -m uv pip install --quiet --python "$folder/bin/python" --no-deps --editable .
    echo "$wanted" >"$folder/installed"
}

# Makes an environment with the newest versions for another Python than that of .venv, and prints its folder.
install_python() { # $1: a version such as 3.13, or the path of a Python
    local python=$1 version="" folder wanted candidate
    local ask='import sys; sys.exit(sys.version_info < (3, 11) or print(sys.version.split()[0]))'
    local candidates=("$python")
    # pyenv has a python3.13 that only says where the real one is, unless this version is switched on.
    [[ $python == */* ]] || candidates=("python$python" "${HOME:-}/.pyenv/versions/$python"{,.*}/bin/python)
    for candidate in "${candidates[@]}"; do
        [ -n "$1" ] && [ -z "$version" ] && version=$("$candidate" -c "$ask" 2>/dev/null) && python=$candidate
    done
    if [ -z "$version" ]; then
        echo "--python $1: there is no such Python, or it is older than 3.11; give a version such as 3.13, or a path." >&2
        return 2
    fi
    folder=.venv-${version%.*}
    wanted="$version $(cksum <pyproject.toml)"
    if [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing the newest versions that are allowed, with Python $version (once) ..." >&2
        "$python" -m venv --clear "$folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[test]" >&2
        echo "$wanted" >"$folder/installed"
    fi
    echo "$folder"
}

# Installs a package where nobody minds: in CI, on Debian, by root. Where one of its commands is there already, it does
# nothing. Where it cannot be had, prints one line. Never fails.
install_debian() { # $1: the package, others: its commands, of which one is enough
    local package=$1 command
    shift
    for command in "$@"; do
        if command -v "$command" >/dev/null; then
            return
        fi
    done
    if [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $package (once) ..."
        {
            timeout 60 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install --yes \
                --no-install-recommends "$package"
        } >/dev/null 2>&1 </dev/null || true
    fi
    command -v "$1" >/dev/null || echo "Tests that need $1 are left out, because it is not installed."
}

LIBTPU=0.0.51 # other versions may compile otherwise, and JAX asks for no particular one

# Makes .venv-accelerators, which has all that .venv has and the compilers for TPU and GPU. In .venv itself they would make
# every start of JAX look for such devices. Where they cannot be had, prints one line that says why, and returns 1.
install_accelerators() {
    local folder=.venv-accelerators jaxlib shared packages wanted output
    jaxlib=$(.venv/bin/python -c 'import jaxlib; print(jaxlib.__version__)')
    shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    packages=("libtpu==$LIBTPU" "jax-cuda12-plugin==$jaxlib" "jax-cuda12-pjrt==$jaxlib"
        "nvidia-cuda-nvcc-cu12==12.9.*" "nvidia-cuda-runtime-cu12==12.9.*")
    wanted="$shared ${packages[*]}"
    if [ "$(cat "$folder/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "Installing compilers for TPU and GPU (once) ..."
    if output=$(
        .venv/bin/python -m venv --clear --without-pip "$folder" &&
            echo "import site; site.addsitedir('$shared')" >"$(echo "$folder"/lib/python3*/site-packages)/shared.pth" &&
            # The packages that these ask for are there already, or only needed to run on a GPU.
            .venv/bin/python -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check \
                --no-deps --retries 1 "${packages[@]}" 2>&1 &&
            "$folder/bin/python" scripts/compilers.py 2>/dev/null
    ); then
        echo "$wanted" >"$folder/installed"
    else
        echo "The tests for TPU and GPU are left out, because their compilers cannot be had: $(tail -n 1 <<<"$output")"
        return 1
    fi
}
