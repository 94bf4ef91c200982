#!/bin/sh
# Make the secrets that docker-compose.yml hands to the containers; keeps those that are there.
#
# The directory is closed to all but its owner. The files in it can be read by whoever gets that
# far: a container's user, whose number is not that of the host's, is given a file and no directory.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets models
chmod 0700 secrets
chmod 0755 models
for name in admin_key redis_password; do
  [ -s "secrets/$name" ] && continue
  head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' >"secrets/.$name"
  chmod 0444 "secrets/.$name"
  mv "secrets/.$name" "secrets/$name"
done
echo "secrets are in $(pwd)/secrets"
