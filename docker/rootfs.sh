#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes an image of what was built, without a container daemon: the programs, and those of the system's packages that hold a
# library which they load. The same build and the same packages give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

usage() {
  cat <<USAGE
usage: docker/rootfs.sh [--build DIR] [--tag TAG] broker|workload OUT

  broker      cusliced and cuslicectl, and the libraries for containers; starts cusliced
  workload    small CUDA programs of cuda_samples/, to try a slice with; starts launch_sync

  --build DIR  where it was built (default: build/release)
  --tag TAG    of the image (default: the version)

OUT ending in .tar becomes an image for \`ctr images import\` and \`docker load\`; else it is a folder, made anew, with the root
file system in it.
USAGE
}

fail() {
  echo "rootfs: error: $*" >&2
  exit 1
}

build=build/release
tag="$(sed -nE 's/^project\(cuslice VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)"
arguments=()
while (($#)); do
  case "$1" in
    --build) build="${2:?--build needs a folder}"; shift ;;
    --tag) tag="${2:?--tag needs a tag}"; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; fail "unknown option '$1'" ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
((${#arguments[@]} == 2)) || { usage >&2; exit 2; }
readonly image="${arguments[0]}" out="${arguments[1]}"

# uid 65534 is nobody's; the broker has to be root, or it could not look at the processes of its tenants.
case "$image" in
  broker)
    programs=(bin/cusliced bin/cuslicectl)
    libraries=(lib/libcuslice-cuda.so lib/libcuslice-nvml.so)
    entrypoint=/opt/cuslice/bin/cusliced
    user=0
    ;;
  workload)
    programs=(bin/samples/launch_sync bin/samples/hog bin/samples/request_loop bin/samples/runtime_check-13-static-legacy)
    libraries=()
    entrypoint=/opt/cuslice/bin/launch_sync
    user=65534
    ;;
  *) usage >&2; fail "unknown image '$image'" ;;
esac
for file in "${programs[@]}" "${libraries[@]}"; do
  [[ -f $build/$file ]] || fail "no $build/$file: run scripts/build.sh release, or name another folder by --build"
done

epoch="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="$work/root"

# Packages still hold /lib and /lib64, which are links on a system as they are made today.
mkdir -p "$root"/{opt/cuslice/bin,opt/cuslice/lib,usr/lib,usr/lib64,etc,run,tmp,var/lib/dpkg/status.d}
chmod 1777 "$root/tmp"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
echo 'root:x:0:0:root:/:/nonexistent
nobody:x:65534:65534:nobody:/nonexistent:/nonexistent' >"$root/etc/passwd"
echo 'root:x:0:
nogroup:x:65534:' >"$root/etc/group"

# The packages that hold what the loader finds for these programs.
packages() {
  local library
  for library in $(cd "$build" && ldd "$@" | awk '/=> \// { print $3 } $1 ~ /^\// && /\(0x/ { print $1 }' | sort -u); do
    dpkg-query --search "$(realpath "$library")" 2>/dev/null || dpkg-query --search "$library" ||
      fail "no package holds $library"
  done | sed 's/: .*//' | sort -u
}
mapfile -t needed < <(packages "${programs[@]}")
((${#needed[@]})) || fail "the programs of $build load no library of a package"
# The newest that the system's sources have, with its security fixes: a library's package keeps its interface under one name.
add_packages() {
  local archive folder
  folder="$(mktemp -d "$work/packages.XXXXXX")"
  (cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root "$@") ||
    fail "apt could not download: $*. Are the package lists there? Run apt-get update"
  for archive in "$folder"/*.deb; do
    dpkg-deb --fsys-tarfile "$archive" | tar -x -C "$root" --keep-directory-symlink --no-same-owner
    # Where scanners look for what an image without a package manager is made of.
    dpkg-deb --field "$archive" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$archive" Package)"
  done
}
add_packages "${needed[@]}"
# The licence of a package may be a link to another's, which holds no library.
mapfile -t licences < <(find "$root/usr/share/doc" -maxdepth 1 -xtype l -printf '%l\n' | sort -u)
if ((${#licences[@]})); then add_packages "${licences[@]}"; fi
# Of the documentation only the licences.
find "$root/usr/share" -type f ! -path '*/doc/*/copyright' -delete
find "$root/usr/share" -depth -type d -empty -delete

for file in "${programs[@]}"; do install -m 0755 "$build/$file" "$root/opt/cuslice/bin/"; done
for file in "${libraries[@]}"; do install -m 0644 "$build/$file" "$root/opt/cuslice/lib/"; done
install -D -m 0644 LICENSE "$root/usr/share/doc/cuslice/copyright"

if [[ $out != *.tar ]]; then
  rm -rf "$out"
  mv -T "$root" "$out"
  exit 0
fi
tar -c -C "$root" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu . >"$work/layer.tar"
docker/pack.py --layer "$work/layer.tar" --name "cuslice/$image:$tag" --entrypoint "$entrypoint" --user "$user" \
  --created "$epoch" "$out"
