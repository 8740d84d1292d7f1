#!/bin/sh
# Installs what the benches measure against: bubblewrap, for sandbox_spawn.
set -eu
command -v bwrap >/dev/null && exec bwrap --version
[ -e /etc/debian_version ] || { echo "install bubblewrap with this system's package manager" >&2; exit 1; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null
bwrap --version
