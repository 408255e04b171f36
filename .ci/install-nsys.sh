#!/usr/bin/env bash
# Which nsys can the tests use on a machine without a GPU? Nsight Systems 2023.4.4 from Debian's non-free section.
#
#     bash .ci/install-nsys.sh [PREFIX]     (root, Debian on x86-64; default PREFIX /opt/nsys; about 190 MB)
#
# The program is then PREFIX/target-linux-x64/nsys. It records NVTX ranges of CPU programs, through the PyPI package
# nvtx==0.2.8 (later ones are not seen by this nsys), and exports them. The mirror is the machine's own.
set -euo pipefail

prefix=${1:-/opt/nsys}
nsys=$prefix/target-linux-x64/nsys
suite=trixie
if [ -x "$nsys" ]; then
  "$nsys" --version
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"

mirror=$(awk '$1 == "URIs:" { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
if [ -z "$mirror" ]; then
  mirror=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true)
fi
if [ -z "$mirror" ]; then
  echo "install-nsys: no Debian mirror in /etc/apt; install Nsight Systems by hand and put nsys on PATH" >&2
  exit 1
fi
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite non-free" > "$work/sources.list"
private=(
  -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root
)
apt-get -qq "${private[@]}" update
(cd "$work" && apt-get -qq "${private[@]}" download nsight-systems nsight-systems-target)
for package in "$work"/*.deb; do
  dpkg -x "$package" "$work/unpacked"
done
apt-get -qq update
apt-get -qq install -y --no-install-recommends libssh-4 libpfm4 > /dev/null

mkdir -p "$prefix"
cp -a "$work/unpacked/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64" \
  "$work/unpacked/usr/lib/nsight-systems/host-linux-x64" "$prefix/"
cd "$prefix/host-linux-x64" # the importer loads its libssh from beside itself, and Debian has taken that out
ln -sf /usr/lib/x86_64-linux-gnu/libssh.so.4 libssh.so.4
ln -sf libssh.so.4 libssh.so
"$nsys" --version
