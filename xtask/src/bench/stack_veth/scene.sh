# One measurement of the benchmark `stack-veth`, in namespaces of its own that end with it: a server behind a cable with an
# MTU of 1500 and no offloads, and Linux's own client at the other end. Called with: the server (bywash, kernel or nginx),
# the case (requests, connections, receive or send), seconds, bywash, and where a profile is to be written, if one is.
set -eu
server=$1 case=$2 seconds=$3 bywash=$4 profile=${5-}
here=10.9.0.1 there=10.9.0.2 client_core=0 server_core=1

mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
# Programs here are known by the numbers of a namespace of their own; /proc has those of the whole machine.
mkdir /run/netns /run/nginx /run/proc
mount -t proc proc /run/proc
ip netns add far
far() { ip netns exec far "$@"; }
ip link add near mtu 1500 type veth peer name far mtu 1500 netns far
# Packets as on a wire, in both directions, and one congestion control for all.
off='tx off rx off sg off tso off gso off gro off'
for end in near far; do
    place=
    [ $end = near ] || place=far
    $place ip link set lo up
    $place ethtool -K $end $off >/run/features
    $place ip link set $end up
done
route='ip route add 10.9.0.0/24 congctl lock cubic'
ip address add $here/24 dev near noprefixroute
$route dev near src $here
if [ "$server" != bywash ]; then
    far ip address add $there/24 dev far noprefixroute
    far $route dev far src $there
fi

case $case in
requests | connections) program=http port=80 ;;
receive) program=sink port=9 ;;
send) program=upload port=19 ;;
esac
# What nginx wants to hear first.
get= post=
where=--kernel
[ "$server" = kernel ] || where="--port xdp:far --addr $there/24 --huge-pages off --memory 64M"
if [ "$server" = nginx ]; then
    cat >/run/nginx.conf <<END
daemon off; master_process off; worker_processes 1; pid /run/nginx/pid; error_log /run/nginx/error;
events { worker_connections 1024; }
http {
    access_log off; keepalive_requests 100000000; tcp_nodelay on; sendfile on;
    # It answers at once, and reads what comes then for no one.
    client_max_body_size 0; lingering_time 1h;
    client_body_temp_path /run/nginx/body; proxy_temp_path /run/nginx/proxy; fastcgi_temp_path /run/nginx/fastcgi;
    uwsgi_temp_path /run/nginx/uwsgi; scgi_temp_path /run/nginx/scgi;
    server { listen $there:80 backlog=4096; location /bulk { root /run; } location / { return 200 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl"; } }
}
END
    port=80
    get='GET /bulk HTTP/1.0\r\n\r\n'
    post="POST / HTTP/1.1\r\nHost: $there\r\nContent-Length: 1000000000000\r\n\r\n"
    # As long as any run, and without a page of memory.
    truncate -s 1T /run/bulk
    ip netns exec far taskset -c $server_core nginx -p /run/nginx -c /run/nginx.conf 2>/run/said &
else
    XDG_RUNTIME_DIR=/run ip netns exec far "$bywash" tcp $program $where --cores $server_core --json \
        --duration $((seconds + 30))s >/run/said 2>&1 &
fi
pid=$!
for _ in $(seq 100); do
    # The first one also has each end learn the other's address.
    bash -c "exec 3<>/dev/tcp/$there/$port" 2>/run/refused && break
    sleep 0.1
done
sleep 0.3

# CPU time so far, in the hundredths of a second that the kernel shows: the whole machine's, the server's, and that of the
# kernel's threads which do what is too much for one go.
spent() {
    awk -v pid=$pid '
        FILENAME == "/proc/stat" { if ($1 == "cpu") machine = $2 + $3 + $4 + $7 + $8; next }
        { program = $2; sub(/.*\) /, ""); time = $12 + $13 }
        FILENAME == "/run/proc/" pid "/stat" { server = time }
        program ~ /^\(ksoftirqd/ { threads += time }
        END { print "spent", machine, server, threads }
    ' /proc/stat /run/proc/$pid/stat $softirq
}
softirq=$(for file in /proc/[0-9]*/stat; do
    case $(cat "$file" 2>/run/refused) in *'(ksoftirqd/'*) echo "$file" ;; esac
done)
# A stream is to go on until its time is over.
is_over() { [ "$1" = 124 ] || echo "Failed requests: 1"; }
client() {
    case $case in
    requests) taskset -c $client_core wrk -t1 -c16 "-d$seconds" --latency http://$there/ ;;
    connections) taskset -c $client_core ab -q -t "$seconds" -n 2000000 -c 16 http://$there/ ;;
    receive)
        taskset -c $client_core timeout -s INT "$seconds" bash -c "exec 3<>/dev/tcp/$there/$port
            printf '$post' >&3
            exec dd if=/dev/zero bs=64k >&3" || is_over $?
        ;;
    send)
        taskset -c $client_core timeout -s INT "$seconds" bash -c "exec 3<>/dev/tcp/$there/$port
            printf '$get' >&3
            exec dd of=/dev/null bs=64k <&3" || is_over $?
        ;;
    esac
    echo "the client's:"
    times
}
if [ -n "$profile" ]; then
    # perf has to see programs by the numbers that they have here.
    unshare --mount sh -c 'mount -t proc proc /proc && exec perf record -a -F 1999 -o "$0" sleep "$1"' \
        "$profile" $((seconds - 1)) >/run/perf 2>&1 &
    perf=$!
fi
spent
(client) 2>&1
spent
if [ -n "$profile" ]; then
    wait $perf || cat /run/perf
    perf report -i "$profile" --comms 'engine 0,kernel 0,wrk,ab,dd,ksoftirqd/0,ksoftirqd/1' --percentage relative \
        --fields overhead,comm,symbol --percent-limit 0.7 --stdio 2>/run/perf | grep '%' || cat /run/perf
fi
kill -INT $pid
wait $pid || true
cat /run/said
