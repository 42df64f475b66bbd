#!/bin/sh
# Guard a deployment: whatever number of jobs and agents start this at once, one deploys at a time.
#
#     examples/deploy_in_ci.sh ./deploy.sh 4.2
#
# Waits ten minutes for its turn, then gives up with status 1 and the name of the holder; the command is not
# started then. Works on this machine's data folder, or asks the server at LEASEPLANE_URL, as several CI
# runners have to. Any other status is the command's own, or one of those that `leaseplane run --help` lists.
set -u
exec leaseplane run lock:deploy/production \
    --timeout "${DEPLOY_WAIT_S:-600}" \
    --note "deploying ${2:-?} from ${CI_JOB_URL:-$(hostname)}" \
    -- "$@"
