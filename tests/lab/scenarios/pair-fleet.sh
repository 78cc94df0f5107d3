#!/usr/bin/env bash
# A fleet of two clients in the other guest: fleet.sh.
clients=b,b
victim=b
. "$(dirname "$0")/fleet.sh"
