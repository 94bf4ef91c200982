#!/bin/sh
# Create the secrets that docker-compose.yml gives to the containers; existing ones are kept.
#
#   sh deploy/secrets.sh [DIRECTORY]      default: deploy/secrets
#
# Only its owner can enter the directory. The files themselves are readable for everybody, because a
# container's user has another uid than the host's, and gets the files mounted without the directory.
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
