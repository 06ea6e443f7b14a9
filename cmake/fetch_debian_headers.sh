#!/bin/sh
# fetch_debian_headers.sh SCRATCH DESTINATION: the headers of Debian's libonnxruntime-dev (trixie) into DESTINATION.
#
# apt does the fetching and the checking of signatures, from the mirror that this machine's apt already names, but with lists,
# caches and sources of its own in SCRATCH: nothing of the system changes, and no privilege is needed.
set -eu
scratch=$1
destination=$2
release=trixie
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

for tool in apt-get dpkg-deb; do
  command -v $tool >/dev/null || { echo "this machine has no $tool" >&2; exit 1; }
done

# 'http://mirror/debian/dists/bookworm/InRelease' ... -> http://mirror/debian, main archives before security and the like
mirrors=$(apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/[^/]*/InRelease'.*|\1|p" |
  awk '!seen[$0]++ { if (/debian$/) print; else rest = rest $0 "\n" } END { printf "%s", rest }')
[ -n "$mirrors" ] || { echo "this machine's apt names no mirror" >&2; exit 1; }

rm -rf "$scratch"
mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
: > "$scratch/status"
if [ -r $keyring ]; then signed="[signed-by=$keyring] "; else signed=; fi

# Settings of the system (proxies, certificates) hold, but for its sources and for what it does after an update.
cat > "$scratch/apt.conf" <<CONF
#clear APT::Update;
#clear Acquire::IndexTargets::deb::DEP-11;
Dir::Etc::sourcelist "$scratch/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$scratch";
Dir::State::lists "$scratch/lists";
Dir::State::status "$scratch/status";
Dir::Cache "$scratch";
Dir::Cache::archives "$scratch/archives";
APT::Sandbox::User "root";
APT::Get::List-Cleanup "false";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
CONF

cd "$scratch"
for mirror in $mirrors; do
  echo "deb ${signed}$mirror $release main" > sources.list
  if apt-get -qq -c apt.conf -o APT::Update::Error-Mode=any update &&
     apt-get -qq -c apt.conf download libonnxruntime-dev; then
    dpkg-deb -x libonnxruntime-dev_*.deb unpacked
    rm -rf "$destination"
    mkdir -p "$(dirname "$destination")"
    mv unpacked/usr/include "$destination"
    rm -rf "$scratch"
    exit 0
  fi
done
echo "none of its mirrors gave the package libonnxruntime-dev of $release" >&2
exit 1
