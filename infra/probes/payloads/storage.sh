#!/bin/sh
# Runs fio with LNet's message counters read before and after: which network carried the bytes. POSIX sh and awk only.
#
#   {"poolshift":"lnet","when":"before","node":"a","nets":{"efa":{"send":12,"recv":13}},"connections":["10.0.1.2@efa"]}
#
# "nets" is null where lnetctl is missing or refused; a container sees the kernel's counters only where it is let to.
root="${POOLSHIFT_ROOT:-}"

nets() {
  lnetctl net show -v 2>/dev/null | awk '
    /net type:/ { net = $NF }
    net != "" && $1 == "send_count:" { send[net] += $2; seen[net] = 1 }
    net != "" && $1 == "recv_count:" { recv[net] += $2; seen[net] = 1 }
    END {
      for (net in seen) {
        if (net == "lo") continue
        text = text (text == "" ? "" : ",") sprintf("\"%s\":{\"send\":%d,\"recv\":%d}", net, send[net], recv[net])
      }
      printf "%s", (text == "" ? "null" : "{" text "}")
    }'
}

connections() {
  {
    cat "$root"/sys/fs/lustre/osc/*/ost_conn_uuid
    sed -n 's/^ *current_connection: *//p' "$root"/proc/fs/lustre/osc/*/import
    sed -n 's/^ *current_connection: *//p' "$root"/sys/kernel/debug/lustre/osc/*/import
  } 2>/dev/null | tr -d '"' | awk '
    NF && !seen[$1]++ { text = text (text == "" ? "" : ",") "\"" $1 "\"" }
    END { printf "[%s]", text }'
}

show() {
  printf '\n{"poolshift":"lnet","when":"%s","node":"%s","nets":%s,"connections":%s}\n' \
    "$1" "${NODE_NAME:-$(hostname)}" "$(nets)" "$(connections)"
}

show before
"$@"
code=$?
show after
exit "$code"
