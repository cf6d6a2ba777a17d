# Shared by the scripts beside it: where things lie and how the tree is built.
# Sourced, never run; the caller has set -euo pipefail.

repo=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
readonly repo
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/orbitkv
readonly cache_dir
# Clones in other folders share the compiler cache.
export CCACHE_BASEDIR=$repo CCACHE_NOHASHDIR=1

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# The comment block at the top of a script is its help text.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# env_dir NAME: the environment of scripts/NAME.lock, named after that file's hash.
env_dir() { printf '%s/%s-%s' "$cache_dir" "$1" "$(sha256sum "$repo/scripts/$1.lock" | cut -c1-12)"; }
env_python() { printf '%s/bin/python' "$(env_dir "$1")"; }

# One compiler job needs up to 1.5 GB (sanitizers, CLI11); a small machine must not swap.
build_jobs() {
  local by_memory
  by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "$by_memory" -ge 1 ] || by_memory=1
  local cpus
  cpus=$(nproc)
  echo $((cpus < by_memory ? cpus : by_memory))
}

# build PRESET [cmake arguments]: configures and builds one preset.
build() {
  local preset=$1
  shift
  say "build $preset (-j$(build_jobs))"
  (cd "$repo" && cmake --preset "$preset" "$@" >/dev/null && cmake --build --preset "$preset" -j "$(build_jobs)")
}

# The release build is the one that the Python module and both engines use.
build_release() { build release -DORBITKV_PYTHON=ON -DPython_EXECUTABLE="$(env_python tools)"; }

# Only what runs: no tests.
build_product() {
  say "build release, without tests (-j$(build_jobs))"
  (cd "$repo" && cmake --preset release -DORBITKV_PYTHON=ON -DPython_EXECUTABLE="$(env_python tools)" >/dev/null &&
    cmake --build --preset release -j "$(build_jobs)" --target orbitkv orbitkv-native-engine orbitkv_python)
}
