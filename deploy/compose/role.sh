#!/bin/sh
# What a container of docker-compose.yml does: cafe-role setup | server | worker | healthy. See docs/docker.md.
set -eu

# Root's part is to give the folders to the user; what touches data, keys or the config runs as that user.
setup() {
  chown -R "$CAFE_USER" /parties/*/*
  chown "$CAFE_USER" /results # not all that is in it: CAFE_RESULTS may be a folder with other things too
  for left in events transcript snapshots checkpoints; do
    if [ -e "/results/$left" ]; then chown -R "$CAFE_USER" "/results/$left"; fi
  done
  for worker in ${CAFE_SEATS:-}; do
    mkdir -p "/seats/worker-$worker"
    chown "$CAFE_USER" "/seats/worker-$worker"
  done
  code=0
  as_user prepare || code=$?
  as_user tell "$code"
  touch /tmp/ready
  wait_for_start_of server
  wait_for_the_server_to_go
  rmdir /seats/worker-* 2>/dev/null || true # of those that found nothing
  return "$code"
}

prepare() {
  rm -rf /parties/*/*/*
  # A config that cannot be read is the next command's to say.
  for worker in $(with_config seats 2>/dev/null); do
    case " ${CAFE_SEATS:-} " in
      *" $worker "*) touch "/parties/worker-$worker/certs/curious" ;;
      *) echo "cafe: adversary: worker $worker's container has no folder for what it finds; add" \
        "-f deploy/compose/seats.yml, which has workers 0 to 3" >&2
        return 2 ;;
    esac
  done
  (with_config slice --out /tmp/slices) >/dev/null
  if [ -e /tmp/slices/labels.safetensors ]; then
    echo "cafe: federation.label_holder: coordinator: the server's container holds no data; name a worker" >&2
    return 2
  fi
  set --
  for worker in $(workers); do set -- "$@" --worker-name "$worker=worker-$worker"; done
  cafe certs /tmp/certs --workers "$CAFE_WORKERS" --coordinator-name server "$@" >/tmp/certs.log 2>&1 ||
    { cat /tmp/certs.log >&2; return 1; }
  rm /tmp/certs/ca.key # from here on nobody can make another party
  cp /tmp/certs/ca.pem /tmp/certs/coordinator.* /parties/server/certs
  for worker in $(workers); do
    cp /tmp/certs/ca.pem "/tmp/certs/worker-$worker".* "/parties/worker-$worker/certs"
    mv "/tmp/slices/worker-$worker.safetensors" "/parties/worker-$worker/slice"
  done
  rm -r /tmp/certs /tmp/slices
}

# Everybody starts even when the set-up failed, and hears of it: so the exit code is always the server's.
tell() {
  for party in /parties/*; do echo "$1" >"$party/certs/set-up"; done
}

server() {
  if [ "$(cat /certs/set-up)" != 0 ]; then
    # Compose reports an exit code of its own when a container ends before all have been started.
    for worker in $(workers); do wait_for_start_of "worker-$worker"; done
    return "$(cat /certs/set-up)"
  fi
  if [ "$CAFE_REFEREE" = yes ]; then set -- --referee; fi
  if [ -n "${CAFE_UI_PORT:-}" ]; then set -- "$@" --ui --ui-listen "0.0.0.0:$CAFE_UI_PORT"; fi
  with_config serve --listen 0.0.0.0:7000 --tls /certs --out /results "$@"
}

# A worker that is done, or failed, stays until the server has gone: where one container's end ends all of them
# (--exit-code-from) the server would not get to its attack, or to saying what went wrong.
worker() {
  if [ -e /certs/curious ]; then trap : TERM; fi # its attack may take longer than the server
  if [ "$(cat /certs/set-up)" = 0 ]; then work & else false & fi
  work=$!
  wait_for_the_server_to_go
  patience=10
  while kill -0 "$work" 2>/dev/null && [ "$patience" -gt 0 ]; do
    sleep 1
    [ -e /certs/curious ] || patience=$((patience - 1))
  done
  kill "$work" 2>/dev/null || true
  wait "$work"
}

work() {
  if [ -e /certs/curious ]; then
    set -- --out /results
    if [ "$CAFE_REFEREE" = yes ]; then set -- "$@" --referee; fi
  fi
  (with_config work --id "$CAFE_ID" --coordinator server:7000 --listen 0.0.0.0:7001 \
    --advertise "worker-$CAFE_ID:7001" --data "/slice/worker-$CAFE_ID.safetensors" --threads "$CAFE_THREADS" --tls /certs "$@")
  touch /tmp/done
}

# After the last round nobody is served any more: the server computes the attack, the workers wait.
healthy() {
  if [ -n "${CAFE_ID:-}" ]; then
    cafe health 127.0.0.1:7001 --tls /certs --id "$CAFE_ID" || [ -e /tmp/done ]
  else
    cafe health 127.0.0.1:7000 --tls /certs || [ /results/model.pt -nt /certs/set-up ]
  fi
}

# Become `cafe COMMAND` with the config and what the environment changes of it; `seats` lists the curious workers.
with_config() {
  command=$1
  shift
  set -- "$@" --set "federation.workers=$CAFE_WORKERS"
  [ -z "$CAFE_DATASET" ] || set -- "$@" --set "data.name=$CAFE_DATASET"
  [ -z "$CAFE_ATTACK" ] || set -- "$@" --set "attack={name: $CAFE_ATTACK}"
  [ -z "$CAFE_DEFENCE" ] || set -- "$@" --set "defence={name: $CAFE_DEFENCE}"
  [ -z "$CAFE_ADVERSARY" ] || set -- "$@" --set "adversary=$CAFE_ADVERSARY"
  [ -z "$CAFE_ROUNDS" ] || set -- "$@" --set "federation.rounds=$CAFE_ROUNDS" --set federation.epochs=null
  set -f # CAFE_SET is cut at spaces; a star in it is no file name
  for change in $CAFE_SET; do set -- "$@" --set "$change"; done
  [ "$command" != seats ] || exec python -c "$SEATS" "$@"
  exec cafe "$command" /run.yaml "$@"
}

SEATS='import sys
from pathlib import Path
from vfl.config import load_config
for seat in load_config(Path("/run.yaml"), sys.argv[2::2]).seats:
    if seat.worker is not None:
        print(seat.worker)
'

workers() {
  seq 0 $((CAFE_WORKERS - 1))
}

as_user() {
  setpriv --reuid "${CAFE_USER%:*}" --regid "${CAFE_USER#*:}" --clear-groups cafe-role "$@"
}

# Docker's name service knows a container as long as it runs.
runs() {
  getent hosts "$1" >/dev/null
}

wait_for_start_of() {
  for _ in $(seq 150); do
    if runs "$1"; then break; fi
    sleep 0.2
  done
}

wait_for_the_server_to_go() {
  misses=0
  while [ "$misses" -lt 3 ]; do
    if runs server; then misses=0; else misses=$((misses + 1)); fi
    sleep 1
  done
}

"$@"
