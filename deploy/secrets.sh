#!/bin/sh
# Make the secrets that docker-compose.yml hands to the containers; keeps those that are there.
#
#   sh deploy/secrets.sh [DIRECTORY]      default: deploy/secrets
#
# The directory is closed to all but its owner. The files in it can be read by whoever gets that
# far: a container's user, whose number is not that of the host's, is given a file and no directory.
set -eu
directory=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$directory"
chmod 0700 "$directory"
for name in ratoon_admin_key ratoon_server_secret ratoon_pepper redis_password; do
  [ -s "$directory/$name" ] && continue
  head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' >"$directory/.$name"
  chmod 0444 "$directory/.$name"
  mv "$directory/.$name" "$directory/$name"
done
echo "secrets are in $directory"
