#!/usr/bin/env bash
# A fleet of four guests, one client in each: fleet.sh.
clients=b,c,d,e
victim=d
. "$(dirname "$0")/fleet.sh"
