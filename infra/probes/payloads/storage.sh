#!/bin/sh
# Runs fio with LNet's message counters read before and after: which network carried the bytes. POSIX sh and awk only.
#
#   {"poolshift":"lnet","when":"before","node":"a","nets":{"efa":{"send":12,"recv":13}},"connections":["10.0.1.2@efa"],
#    "mount":{"directory":"/mnt/poolshift","at":"/mnt/poolshift","type":"lustre"}}     (one line)
#
# "nets" is null where lnetctl is missing or refused; a container sees the kernel's counters only where it is let to.
# "mount" is what the kernel says of fio's directory (--directory=); null without one.
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

directory=""
for word in "$@"; do
  case "$word" in --directory=*) directory="${word#--directory=}" ;; esac
done

# Of the mounts above the directory the deepest, and of several on one place the last, is the one that is seen.
mounted() {
  place=$(cd "$directory" 2>/dev/null && pwd -P) || place=""
  [ -n "$directory" ] && [ -n "$place" ] || { printf null; return; }
  awk -v asked="$directory" -v place="$place" '
    function plain(text) { gsub(/[^A-Za-z0-9_.\/:@ -]/, "?", text); return text }
    { point = $5; gsub(/\\040/, " ", point) }   # the kernel writes a blank in a path as \040
    point == "/" || point == place || index(place, point "/") == 1 {
      for (n = 6; n < NF; n++) if ($n == "-") break
      if (length(point) >= length(at)) { at = point; type = $(n + 1) }
    }
    END {
      if (type == "") { printf "null"; exit }
      printf "{\"directory\":\"%s\",\"at\":\"%s\",\"type\":\"%s\"}", plain(asked), plain(at), plain(type)
    }' "$root/proc/self/mountinfo" 2>/dev/null || printf null
}

show() {
  printf '\n{"poolshift":"lnet","when":"%s","node":"%s","nets":%s,"connections":%s,"mount":%s}\n' \
    "$1" "${NODE_NAME:-$(hostname)}" "$(nets)" "$(connections)" "$(mounted)"
}

show before
"$@"
code=$?
show after
exit "$code"
